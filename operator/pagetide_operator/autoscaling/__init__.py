"""The autoscaler: from what servers export to how many replicas there should be, and why.

Pure parts, which take the time as an argument and are shared by the operator, the local runner and the simulation:
`samples` (one scrape), `windows` (many scrapes of one pod), `signals` (what the load asks for), `policy` (what is
decided), `behavior` (how fast replicas may change), `guard` (whether one may leave, and which), `autoscaler` (one
service over time), `explain` (why, in words). Only `scrape` speaks to anybody: to servers.
Does not belong here: where replicas are started and ended (`scaler/` in a cluster, `local/` on one machine).
Imports no torch.
"""
