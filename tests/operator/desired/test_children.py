"""The children of a service."""

import pytest

from pagetide_operator.desired.children import ONE_AT_A_TIME, Platform, children, wanted_replicas
from pagetide_spec.inference_service import Rollout
from pagetide_spec.names import ANNOTATION_APPLIED, selector_labels
from pagetide_spec.resource import parse

from .manifests import PLATFORM, made


@pytest.mark.parametrize(
    ("spec", "platform", "expected"),
    [
        pytest.param({}, PLATFORM, set(), id="no more than the five of every service"),
        pytest.param({"cache": {"size": "5Gi"}}, PLATFORM, {("PersistentVolumeClaim", "llm-cache")}, id="a cache"),
        pytest.param({"cache": {"pvc": "mine"}}, PLATFORM, set(), id="no claim where one is given"),
        pytest.param(
            {},
            Platform("i", has_service_monitors=True),
            {("ServiceMonitor", "llm")},
            id="a monitor where there are any",
        ),
        pytest.param(
            {"inferencePool": {"endpointPicker": {"name": "p"}}},
            Platform("i", has_inference_pools=True),
            {("InferencePool", "llm")},
            id="a pool where it is asked for and there are any",
        ),
        pytest.param({}, Platform("i", has_inference_pools=True), set(), id="no pool that nobody asked for"),
        pytest.param(
            {"inferencePool": {"endpointPicker": {"name": "p"}}}, PLATFORM, set(), id="no pool where there are none"
        ),
    ],
)
def test_children(service, spec, platform, expected):
    always = {
        ("ServiceAccount", "llm"),
        ("Service", "llm"),
        ("Service", "llm-replicas"),
        ("Deployment", "llm"),
        ("PodDisruptionBudget", "llm"),
    }
    assert set(made(service(**spec), platform=platform)) == always | expected


def test_an_account_of_the_user_is_not_made(service):
    found = made(service(template={"serviceAccountName": "mine"}))
    assert ("ServiceAccount", "llm") not in found
    assert found["Deployment", "llm"]["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_every_child_is_owned_labelled_and_stamped(service):
    for child in made(service(cache={"size": "5Gi"})).values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["kind"]) == ("uid-1", True, "InferenceService")
        assert selector_labels("llm").items() <= child["metadata"]["labels"].items()
        assert child["metadata"]["annotations"][ANNOTATION_APPLIED]


def test_the_budget_has_the_version_of_the_cluster(service):
    found = made(service(), platform=Platform("i", budget_version="policy/v1beta1"))
    assert found["PodDisruptionBudget", "llm"]["apiVersion"] == "policy/v1beta1"


@pytest.mark.parametrize("has_policy", [True, False])
def test_a_crash_loop_keeps_no_node_from_being_drained_where_kubernetes_knows_how(service, has_policy):
    found = made(service(), platform=Platform("i", has_eviction_policy=has_policy))
    assert found["PodDisruptionBudget", "llm"]["spec"].get("unhealthyPodEvictionPolicy") == (
        "AlwaysAllow" if has_policy else None
    )


def test_equal_services_give_equal_manifests(service):
    assert made(service()) == made(service())


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        pytest.param({}, {}, 1, id="one by default"),
        pytest.param({"replicas": 0}, {}, 0, id="none if so asked"),
        pytest.param({"replicas": 3}, {"desiredReplicas": 9}, 3, id="a fixed number heeds no autoscaler"),
        pytest.param({"autoscaling": {"maxReplicas": 4}}, {}, 1, id="scaled: the least at first"),
        pytest.param({"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}, {}, 1, id="scaled to zero: one at first"),
        pytest.param({"autoscaling": {"maxReplicas": 4}}, {"desiredReplicas": 3}, 3, id="scaled: as last decided"),
        pytest.param({"autoscaling": {"maxReplicas": 4}}, {"desiredReplicas": 9}, 4, id="never above the most"),
        pytest.param(
            {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}, {"desiredReplicas": 0}, 2, id="never below the least"
        ),
    ],
)
def test_wanted_replicas(service, spec, status, expected):
    assert wanted_replicas(parse(service(**spec)), status) == expected


def test_a_cache_that_one_node_only_can_mount_has_no_surge_pod(service):
    assert parse(service(cache={"size": "1Gi"})).rollout == ONE_AT_A_TIME
    assert parse(service(cache={"pvc": "shared"})).rollout == Rollout(1, 0)


def test_the_rollout_is_as_asked(service):
    found = parse(service(rollout={"maxSurge": "25%", "maxUnavailable": 1}))
    (deployment,) = (m for m in children(found, PLATFORM, 1, found.rollout, None) if m["kind"] == "Deployment")
    assert found.rollout == Rollout("25%", 1)
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 1}
