"""The front door: one OpenAI address for many services; routing, holding, limits.

Belongs here: choosing a replica, forwarding bytes, watching health. Does not belong here: starting or scaling replicas
(the operator's), and any understanding of tokens beyond block hashes. Imports no torch.
"""
