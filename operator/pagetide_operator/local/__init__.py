"""The local runner: InferenceService files as processes of this machine, behind the gateway, with no cluster.

Belongs here: turning a resource into commands (`service`), deciding what to start and stop (`plan`), doing so
(`supervisor`, `process`), reporting it (`status`, `show`), the `pagetide up` command and the demo. The only part of
the operator that drives the gateway. Does not belong here: any rule of scaling (`autoscaling/`), and Kubernetes.
"""
