"""One client's request: let in, held while its service wakes, sent to replicas until one answers, the answer passed on.

Does not belong here: which replica is best (`routing/`), and whether one is well (`polling/`).
"""
