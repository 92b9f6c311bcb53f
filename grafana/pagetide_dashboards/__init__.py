"""Dashboards and alert rules as code: small pure functions from the contract's metric names to Grafana's JSON and to
Prometheus' rules.

Belongs here: panels, queries, rules, and writing them to files. Does not belong here: anything that runs with Pagetide;
what a user imports is the generated JSON and YAML beside this package.
"""
