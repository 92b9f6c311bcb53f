"""What the state of a service's children means: its conditions, failures, capacity and rollout, in words for people.

Belongs here: reading state. Does not belong here: what to do about it (`decide`). Pure, but for `capacity`, which asks
servers what they can hold.
"""
