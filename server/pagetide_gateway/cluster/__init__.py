"""InferenceServices and pods of a Kubernetes cluster, watched, and how a sleeping service is woken there.

Belongs here: all that speaks to an API server. The rest of the gateway does not know that there is one.
Does not belong here: health of replicas (`polling/`), and requests of clients (`proxy/`).
"""
