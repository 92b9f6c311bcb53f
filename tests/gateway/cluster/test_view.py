"""What InferenceServices and their pods mean for the gateway."""

from __future__ import annotations

import pytest

from pagetide_gateway.cluster.view import pod_view, service_view, wanted
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


def test_pods_go_to_the_service_of_their_namespace():
    services = [service_view(service("m", "a")), service_view(service("m", "b"))]
    one, two = wanted(services, [pod_view(pod("p", "m", "a")), pod_view(pod("q", "gone", "a"))])
    assert (dict(one.replicas), dict(two.replicas)) == ({"p": "http://10.0.0.1:8000"}, {})
