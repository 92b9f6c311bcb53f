"""What each op means, in plain float32 torch, slow and short: the oracle of the tests.

Does not belong here: anything that is optimized, or that an engine calls.
"""
