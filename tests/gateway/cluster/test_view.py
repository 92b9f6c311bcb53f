"""What InferenceServices and their pods mean for the gateway."""

from __future__ import annotations

import pytest

from pagetide_gateway.cluster.view import pod_view, service_view, wanted
from pagetide_spec.conditions import crash_text
from pagetide_spec.names import ANNOTATION_DRAINING

from .resources import pod, service


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        pytest.param(pod("p", "m"), (True, False), id="ready"),
        pytest.param(pod("p", "m", ready="False"), (False, False), id="not ready"),
        pytest.param(
            pod("p", "m", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), (True, True), id="being deleted"
        ),
        pytest.param(
            pod("p", "m", metadata={"annotations": {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}),
            (True, True),
            id="chosen to leave",
        ),
        pytest.param(pod("p", "m", ip=""), None, id="no address yet"),
        pytest.param(pod("p", "m", phase="Failed"), None, id="ended"),
        pytest.param({"metadata": {"name": "p", "namespace": "ns"}}, None, id="nothing known"),
    ],
)
def test_pod_view(resource, expected):
    view = pod_view(resource)
    assert (view and (view.is_ready, view.is_draining)) == expected


def test_addresses_of_both_families():
    assert pod_view(pod("p", "m", ip="fd00::1")).url == "http://[fd00::1]:8000"


@pytest.mark.parametrize("spec", [None, [], {"model": 3}, {"model": {"servedName": 3}}])
def test_a_wrong_resource_is_listed_under_its_name(spec):
    assert service_view({"metadata": {"name": "a", "namespace": "ns"}, "spec": spec}).served == "a"


def unready(reason, message="told", about=2, now=2, status="False"):
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message, "observedGeneration": about}
    made = service("m", autoscaling={"maxReplicas": 2})
    made["metadata"]["generation"] = now
    return {**made, "status": {"conditions": [condition]}}


DRAINING = {"annotations": {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("resource", "pods", "is_broken"),
    [
        pytest.param(service("m"), [], False, id="no operator has looked at it"),
        pytest.param(unready("ScaledToZero", status="True"), [], False, id="asleep"),
        pytest.param(unready("Starting"), [pod("p", "m")], False, id="starting"),
        pytest.param(unready("Unschedulable"), [], False, id="room may come"),
        pytest.param(unready("InvalidSpec"), [], True, id="invalid"),
        pytest.param(unready("InvalidName"), [], True, id="invalid name"),
        pytest.param(unready("InvalidSpec", about=1), [], False, id="invalid, and changed since"),
        pytest.param(unready("InvalidSpec"), [pod("p", "m")], False, id="invalid, but an earlier version has a pod"),
        pytest.param(unready("InvalidSpec"), [pod("p", "m", metadata=DRAINING)], True, id="invalid, the pod leaves"),
        pytest.param(unready("CrashLoopBackOff", crash_text("server", 2, "no such model")), [pod("p", "m")], True,
                     id="a wrong setting"),
        pytest.param(unready("CrashLoopBackOff", crash_text("server", 3)), [pod("p", "m")], False,
                     id="its model could not be loaded this time"),
        pytest.param(unready("CrashLoopBackOff", crash_text("server", 4, "the engine process ended with exit code 2")),
                     [pod("p", "m")], False, id="another code, and last words that name that one"),
        pytest.param(unready("CrashLoopBackOff", crash_text("sidecar", 2, "panic")), [pod("p", "m")], False,
                     id="another container"),
        pytest.param(unready("CrashLoopBackOff", crash_text("server", 20)), [pod("p", "m")], False, id="another code"),
        pytest.param(unready("InvalidImageName"), [pod("p", "m")], True, id="an image that cannot be"),
    ],
)  # fmt: skip
def test_a_service_is_broken_where_only_a_change_helps(resource, pods, is_broken):
    (one,) = wanted([service_view(resource)], [view for p in pods if (view := pod_view(p))])
    assert bool(one.broken) == is_broken


def test_what_is_wrong_with_a_service_is_told_with_where_to_look():
    (one,) = wanted([service_view(unready("InvalidSpec", "spec.replicas: -1: must be at least 0"))], [])
    assert one.broken == (
        "InvalidSpec: spec.replicas: -1: must be at least 0 (see: kubectl -n ns describe pgt/m)"
    )  # fmt: skip


def test_pods_go_to_the_service_of_their_namespace():
    services = [service_view(service("m", "a")), service_view(service("m", "b"))]
    one, two = wanted(services, [pod_view(pod("p", "m", "a")), pod_view(pod("q", "gone", "a"))])
    assert (dict(one.replicas), dict(two.replicas)) == ({"p": "http://10.0.0.1:8000"}, {})
