"""The autoscaler over the services of a cluster.

Belongs here: objects as the autoscaler sees them (`fleet`, `services`), when they are scraped (`rounds`), and what
becomes of its decisions (`actor`). Does not belong here: any rule of scaling (`autoscaling/`).
"""
