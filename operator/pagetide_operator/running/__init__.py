"""The operator as a process: starting and ending, leader election, watchdog, health and gauges.

Does not belong here: what is done for a service (`reconcile`, `scaler/`).
"""
