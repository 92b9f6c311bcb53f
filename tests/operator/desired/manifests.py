"""The manifests that a service comes to."""

from pagetide_operator.desired.children import Platform, children, key_of
from pagetide_spec.resource import parse

PLATFORM = Platform(image="pagetide/server:1")


def made(resource, live=None, platform=PLATFORM, replicas=1):
    """(kind, name) -> manifest."""
    found = parse(resource)
    return {key_of(m): m for m in children(found, platform, replicas, found.rollout, live)}


def pod_of(resource, **more):
    return made(resource, **more)["Deployment", "llm"]["spec"]["template"]["spec"]


def server_of(resource):
    return pod_of(resource)["containers"][0]
