"""Services and their replicas as the gateway knows them, and one HTTP exchange with a replica.

Belongs here: what is known, and what a failure of an exchange means. Does not belong here: when requests and polls are
sent (`polling/`, `proxy/`), and where the knowledge comes from (`cluster/`, the command line, the local runner).
"""
