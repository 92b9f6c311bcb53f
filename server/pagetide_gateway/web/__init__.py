"""HTTP with clients, below any framework: ASGI steps, limits on heads, lost peers, errors as OpenAI has them.

Does not belong here: anything that knows services or replicas.
"""
