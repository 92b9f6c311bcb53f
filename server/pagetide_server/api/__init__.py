"""The HTTP side of a server: routes, validation, streaming, metrics, life cycle.

Talks to the engine by messages only, so this side imports no torch.
"""
