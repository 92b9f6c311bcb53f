"""The engine as a process of its own, and the client of it in the API process.

Belongs here: starting, sockets, heartbeats, the end of either side. Does not belong here: what a step does (`engine/`).
The client imports no torch.
"""
