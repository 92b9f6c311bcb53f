"""The pod of a service."""

from pathlib import Path

import pytest

from pagetide_operator.desired.pod import grace_seconds
from pagetide_operator.local.service import localize, replica_command
from pagetide_spec.names import selector_labels
from pagetide_spec.resource import parse

from .manifests import made, pod_of, server_of


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
