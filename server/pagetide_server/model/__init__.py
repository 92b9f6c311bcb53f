"""Networks: finding and loading weights, the attention interface, running one batch, sizing the KV cache.

Belongs here: all that knows transformers' model classes. Does not belong here: what to run next (`engine/`).
"""
