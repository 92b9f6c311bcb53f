"""Asks every replica, again and again, whether it is ready and what it has to do.

Belongs here: rounds of questions that no client waits for. Does not belong here: clients' requests (`proxy/`).
"""
