"""HTTP below any framework, the same at server and gateway: guarded connections, keys, and errors as OpenAI has them.

Does not belong here: anything that knows routes, models, engines or replicas. What depends on uvicorn's inside is here
and nowhere else.
"""
