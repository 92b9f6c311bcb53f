"""Messages between the engine process, its client and the library: structs, their checks, exit codes.

Belongs here: plain data and pure checks over it. Does not belong here: torch, sockets, and what happens to the data.
"""
