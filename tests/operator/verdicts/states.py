"""Deployments and pods in every state, and the status that follows."""

from pagetide_operator.verdicts.status import Children, service_status
from pagetide_spec.names import ANNOTATION_TEMPLATE_HASH
from pagetide_spec.resource import parse

NOW, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:01:00Z"


def template(version):
    return {"metadata": {"annotations": {ANNOTATION_TEMPLATE_HASH: version}}}


def deployment(ready=1, replicas=1, updated=None, surge=1, missing=0, conditions=()):
    """A Deployment of which `updated` pods are of the new version."""
    status = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": replicas if updated is None else updated}
    rolling = {"maxSurge": surge, "maxUnavailable": missing}
    return {
        "metadata": {"name": "llm", "generation": 3},
        "spec": {"template": template("new"), "strategy": {"rollingUpdate": rolling}},
        "status": status | {"observedGeneration": 3, "conditions": list(conditions)},
    }


def pod(version="new", conditions=(), going=False, **container):
    metadata = {"name": "p", **template(version)["metadata"]} | ({"deletionTimestamp": NOW} if going else {})
    found = [{"name": "server", "image": "i", "state": {}, "ready": False, **container}]
    return {"metadata": metadata, "status": {"conditions": list(conditions), "containerStatuses": found}}


def waiting(reason, message=""):
    return pod(state={"waiting": {"reason": reason, "message": message}})


def ended(code, reason="Error", message="", **more):
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod(lastState=state, **more)


LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "late"}


def unscheduled(message, version="new"):
    return pod(version, conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def status_of(resource, live=None, pods=(), trouble=None, now=NOW):
    found = parse(resource)
    wanted = found.replicas if found.replicas is not None else resource["status"].get("desiredReplicas", 1)
    return service_status(found, resource["status"], Children(live, pods), wanted, trouble, now)


def conditions(status):
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in status["conditions"]}


QUOTA = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}
LOADING = {"waiting": {"reason": "ContainerCreating"}}
