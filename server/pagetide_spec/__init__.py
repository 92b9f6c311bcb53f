"""The contract that every package shares: engine settings, metric names, ports, labels, the custom resource.

Belongs here: names, defaults, limits and pure functions over them, each written once; and what all programs do alike
at their edges: the log, the standard streams, the port they listen on, the words for a call that failed.
Does not belong here: any call over a network, to a GPU or to a cluster, and any import of torch or of another Pagetide
package.
"""
