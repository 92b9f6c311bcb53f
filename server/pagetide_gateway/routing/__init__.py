"""The choice of a replica: routers, and what they know of replicas and prompts.

Pure: times are arguments, nothing is asked, sent or logged here. The simulation replays traces through this very code.
Does not belong here: sending requests (`proxy/`), and polling replicas (`polling/`).
"""
