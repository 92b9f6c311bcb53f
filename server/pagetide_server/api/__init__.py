"""The HTTP side of a server: routes, validation, streaming, metrics, life cycle.

Talks to the engine by messages only, so this side imports no torch.
Does not belong here: scheduling and sampling (`engine/`), tokenizers and templates (`text/`), sockets to the engine
(`process/`).
"""
