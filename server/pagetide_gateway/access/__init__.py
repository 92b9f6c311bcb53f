"""API keys: which requests are allowed, their limits, and where the keys are read from.

Does not belong here: HTTP (`web/`, `serving/`), and what happens to an allowed request (`proxy/`).
"""
