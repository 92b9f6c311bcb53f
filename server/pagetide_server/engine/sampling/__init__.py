"""The choice of the next tokens from logits: distributions, penalties, log probabilities, structures.

Belongs here: work on the logits of one step. Does not belong here: which sequences are in the step.
"""
