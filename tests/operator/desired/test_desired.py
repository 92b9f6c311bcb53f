"""The children of a service."""

import json
from pathlib import Path

import pytest

from pagetide_operator.desired.children import ONE_AT_A_TIME, Platform, children, key_of, wanted_replicas
from pagetide_operator.desired.pod import grace_seconds, pod_template
from pagetide_operator.local.service import localize, replica_command
from pagetide_spec.names import ANNOTATION_APPLIED, ANNOTATION_TEMPLATE_HASH, selector_labels
from pagetide_spec.resource import Rollout, parse

PLATFORM = Platform(image="pagetide/server:1")


def made(resource, live=None, platform=PLATFORM, replicas=1):
    """(kind, name) -> manifest."""
    found = parse(resource)
    return {key_of(m): m for m in children(found, platform, replicas, found.rollout, live)}


def pod_of(resource, **more):
    return made(resource, **more)["Deployment", "llm"]["spec"]["template"]["spec"]


def server_of(resource):
    return pod_of(resource)["containers"][0]


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


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"model": {"uri": "hf://org/name", "revision": "v2"}}, ["org/name", "--revision=v2"], id="hub"),
        pytest.param({"model": {"uri": "pvc://c/a/b.gguf"}}, ["/models/a/b.gguf"], id="file of a claim"),
        pytest.param({"model": {"uri": "pvc://c"}}, ["/models"], id="a whole claim"),
        pytest.param({"model": {"uri": "file:///srv/m"}}, ["/srv/m"], id="path"),
        pytest.param({"engine": {"maxNumSeqs": 8}}, ["--max-num-seqs=8"], id="a setting"),
        pytest.param({"engine": {"enablePrefixCaching": False}}, ["--enable-prefix-caching=false"], id="a truth"),
        pytest.param({}, ["--served-model-name=llm", "--port=8000", "--shutdown-timeout-s=60.0"], id="always"),
        pytest.param({"drainSeconds": 600}, ["--shutdown-timeout-s=600.0"], id="streams get the time to drain"),
        pytest.param({"engine": {"shutdownTimeoutS": 5}}, ["--shutdown-timeout-s=5.0"], id="unless it is chosen"),
    ],
)
def test_arguments(service, spec, expected):
    assert set(expected) <= set(server_of(service(**spec))["args"])


def test_the_pod_has_time_to_drain_and_to_shut_down(service):
    found = parse(service(drainSeconds=600, engine={"shutdownTimeoutS": 50}))
    assert grace_seconds(found) >= 600 + 50


def test_the_model_may_take_half_an_hour_to_load_by_default(service):
    probe = server_of(service())["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1800
    probe = server_of(service(startupSeconds=61))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 61


def test_the_pod_is_as_restricted_as_the_strictest_pod_security_standard_asks(service):
    pod = pod_of(service())
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_everything_that_is_written_lies_in_a_volume(service):
    pod = pod_of(service())
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    assert {"/dev/shm", "/tmp", "/cache"} <= set(mounts)
    assert {v["name"] for v in pod["volumes"]} == set(mounts.values())


def test_the_claims_of_model_and_cache_are_mounted(service):
    pod = pod_of(service(model={"uri": "pvc://weights/m"}, cache={"size": "5Gi"}))
    claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "emptyDir" not in v}
    assert claims == {"models": "weights", "cache": "llm-cache"}
    mounts = {m["name"]: m for m in pod["containers"][0]["volumeMounts"]}
    assert mounts["models"] == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_secrets_reach_the_server_by_reference(service):
    resource = service(
        model={"uri": "hf://o/n", "tokenSecretRef": {"name": "hub"}}, apiKeySecretRef={"name": "keys", "key": "k"}
    )
    env = {e["name"]: e.get("valueFrom") for e in server_of(resource)["env"]}
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["PAGETIDE_API_KEY"] == {"secretKeyRef": {"name": "keys", "key": "k"}}


def test_the_template_is_merged_into_the_pod(service):
    template = {
        "nodeSelector": {"gpu": "h200"},
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "env": [{"name": "HOME", "value": "/home"}],
        "securityContext": {"runAsUser": 5},
        "containerSecurityContext": {"readOnlyRootFilesystem": False},
        "containers": [{"name": "server", "command": ["x"]}, {"name": "side", "image": "s"}],
    }
    deployment = made(service(template=template))["Deployment", "llm"]["spec"]["template"]
    pod, server, side = deployment["spec"], *deployment["spec"]["containers"]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (5, True)
    assert (server["command"], side["image"]) == (["x"], "s")
    assert server["securityContext"]["readOnlyRootFilesystem"] is False
    assert {"name": "HOME", "value": "/home"} in server["env"]
    assert deployment["metadata"]["labels"]["team"] == "a"
    assert deployment["metadata"]["annotations"]["note"] == "b"


def test_labels_of_the_template_cannot_break_the_selector(service):
    deployment = made(service(template={"labels": selector_labels("other")}))["Deployment", "llm"]["spec"]
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


def test_amounts_are_text_whatever_the_user_wrote(service):
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": 0.5, "memory": "1Gi"}}
    assert server_of(service(resources=resources))["resources"] == {
        "limits": {"nvidia.com/gpu": "1", "cpu": "0.5", "memory": "1Gi"}
    }


def test_equal_services_give_equal_manifests(service):
    assert made(service()) == made(service())


NEWER = Platform(image="pagetide/server:2")


@pytest.mark.parametrize(
    ("change", "image"),
    [
        pytest.param({}, "pagetide/server:1", id="an unchanged service keeps its pods"),
        pytest.param({"replicas": 5}, "pagetide/server:1", id="scaling keeps them"),
        pytest.param({"rollout": {"maxSurge": 2}}, "pagetide/server:1", id="another speed of rollouts keeps them"),
        pytest.param({"drainSeconds": 60}, "pagetide/server:1", id="a default written out keeps them"),
        pytest.param({"engine": {"maxNumSeqs": 2}}, "pagetide/server:2", id="a changed setting gives new ones"),
    ],
)
def test_pods_after_an_upgrade_of_the_operator(service, change, image):
    live = made(service())["Deployment", "llm"]
    found = pod_of(service(**change), live=live, platform=NEWER)
    assert found["containers"][0]["image"] == image


def test_bookkeeping_that_was_lost_or_spoilt_is_made_anew(service):
    live = json.loads(json.dumps(made(service())["Deployment", "llm"]))
    annotations = live["metadata"]["annotations"]
    edited = annotations["pagetide.dev/template"].replace("pagetide/server:1", "evil/server:1")
    for damage in ({}, *({**annotations, "pagetide.dev/template": text} for text in ("{", "[]", "{}", "1", edited))):
        live["metadata"]["annotations"] = damage
        assert pod_of(service(), live=live, platform=NEWER)["containers"][0]["image"] == "pagetide/server:2"


@pytest.mark.parametrize("resources", [None, {"limits": None}, {"limits": {"cpu": 1}, "requests": None}])
def test_resources_that_are_null_are_as_good_as_none(service, resources):
    sidecar = {"name": "sidecar", "resources": resources}
    made = pod_of(service(template={"containers": [sidecar]}))["containers"][1]["resources"]
    assert made == ({"limits": {"cpu": "1"}} if resources and resources["limits"] else {})


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        pytest.param({"drainSeconds": 10}, 10, id="as long as the resource gives running requests"),
        pytest.param({"drainSeconds": 10, "engine": {"shutdownTimeoutS": 20}}, 20, id="unless it says otherwise"),
    ],
)
def test_a_server_finishes_requests_for_as_long_wherever_it_runs(service, spec, seconds):
    found = parse(service(**spec))
    local = replica_command(localize(found, Path("volumes")), 1)
    assert f"--shutdown-timeout-s={seconds:.1f}" in server_of(service(**spec))["args"]
    assert f"--shutdown-timeout-s={seconds:.1f}" in local


def test_the_hash_in_the_template_tells_templates_apart(service):
    def hash_of(**spec):
        return pod_template(parse(service(**spec)), "i")["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH]

    assert hash_of() == hash_of(replicas=3)
    assert hash_of() != hash_of(engine={"maxNumSeqs": 2})
    assert hash_of() != hash_of(template={"annotations": {"a": "b"}})


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
