"""`pagetide top`: a live view of a server, a gateway or a cluster in a terminal. It only reads.

Belongs here: asking them for their figures, what follows from two scrapes, and drawing it.
Does not belong here: deciding or changing anything.
"""
