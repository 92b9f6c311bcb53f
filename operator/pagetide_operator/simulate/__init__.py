"""`pagetide simulate`: traces replayed through the policy and the router that serve, against a model of the server.

Belongs here: the model, the replay, figures and their comparison. Does not belong here: any rule of scaling or routing;
those are the very code that runs in the operator and the gateway.
"""
