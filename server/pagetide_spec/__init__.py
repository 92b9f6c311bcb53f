"""The contract that every package shares: engine settings, metric names, ports, labels, the custom resource.

Belongs here: names, defaults, limits and pure functions over them, each written once. Does not belong here: anything
that talks to a network, a GPU or a cluster, and any import of torch or of another Pagetide package.
"""
