"""HTTP with clients, below any framework: the ASGI steps of the hot path, and the errors that the gateway answers with.

Does not belong here: anything that knows services or replicas, and what a server does alike (`pagetide_http`).
"""
