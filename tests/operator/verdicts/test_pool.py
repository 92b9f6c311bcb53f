"""The InferencePool of a service: what it selects, what its pods export, what the status says."""

import pytest

from pagetide_operator.decide import Seen, status_changes, understood
from pagetide_operator.desired.children import Platform, children, key_of
from pagetide_operator.local.service import localize
from pagetide_operator.prefetch import fetching_of
from pagetide_operator.verdicts.failures import Failure
from pagetide_operator.verdicts.pool import NO_EXTENSION
from pagetide_spec.names import SERVER_PORT
from pagetide_spec.resource import parse

PLATFORM = Platform("i", has_inference_pools=True)
ASKED = {"inferencePool": {"endpointPicker": {"name": "picker"}}}


def made(resource, live=None):
    """(kind, name) -> manifest."""
    found = parse(resource)
    fetching = fetching_of(found, PLATFORM, live, ())
    return {key_of(m): m for m in children(found, PLATFORM, 1, found.rollout, live, fetching)}


def pool_of(resource):
    return made(resource)["InferencePool", "llm"]


@pytest.mark.parametrize(
    ("picker", "expected"),
    [
        pytest.param({}, {"port": {"number": 9002}, "failureMode": "FailClose"}, id="with the extension's defaults"),
        pytest.param({"port": 1}, {"port": {"number": 1}, "failureMode": "FailClose"}, id="at a port of its own"),
        pytest.param(
            {"failureMode": "FailOpen"}, {"port": {"number": 9002}, "failureMode": "FailOpen"}, id="open to failure"
        ),
    ],
)
def test_the_picker_is_referred_to(service, picker, expected):
    found = pool_of(service(inferencePool={"endpointPicker": {"name": "picker", **picker}}))
    assert found["apiVersion"] == "inference.networking.k8s.io/v1"
    assert found["spec"]["endpointPickerRef"] == {"name": "picker", **expected}


def test_the_pool_selects_the_servers_and_not_the_pod_that_fetches_the_model(service):
    found = made(service(**ASKED, cache={"pvc": "models"}))
    (fetch,) = (m for (kind, _), m in found.items() if kind == "Job")
    server = made(service(**ASKED))["Deployment", "llm"]["spec"]["template"]
    spec = found["InferencePool", "llm"]["spec"]
    wanted = spec["selector"]["matchLabels"].items()
    assert wanted <= server["metadata"]["labels"].items()
    assert not wanted <= fetch["spec"]["template"]["metadata"]["labels"].items()
    (port,) = server["spec"]["containers"][0]["ports"]
    assert spec["targetPorts"] == [{"number": port["containerPort"]}] == [{"number": SERVER_PORT}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(ASKED, ["--metrics-compat=vllm"], id="under vLLM's names in a pool"),
        pytest.param({}, [], id="under ours alone elsewhere"),
        pytest.param(ASKED | {"engine": {"metricsCompat": "none"}}, ["--metrics-compat=none"], id="unless chosen"),
    ],
)
def test_the_pods_export_metrics(service, spec, expected):
    pod = made(service(**spec))["Deployment", "llm"]["spec"]["template"]["spec"]
    assert [a for a in pod["containers"][0]["args"] if a.startswith("--metrics-compat")] == expected


@pytest.mark.parametrize(
    ("before", "after", "keeps"),
    [
        pytest.param(ASKED, {"inferencePool": {"endpointPicker": {"name": "x", "port": 1}}}, True, id="another picker"),
        pytest.param({}, ASKED, False, id="the metrics of a pool need new pods"),
        pytest.param(ASKED, {}, False, id="and so does their end"),
        pytest.param(
            {"engine": {"metricsCompat": "vllm"}},
            ASKED | {"engine": {"metricsCompat": "vllm"}},
            True,
            id="pods that exported them before",
        ),
        pytest.param({"engine": {"metricsCompat": "vllm"}}, ASKED, True, id="by whichever field"),
    ],
)
def test_pods_are_kept_where_nothing_changes_for_them(service, before, after, keeps):
    assert (parse(service(**before)).fingerprint == parse(service(**after)).fingerprint) is keeps


def live_pool(owner):
    reference = {"uid": owner, "controller": True, "kind": "InferenceService"}
    return {"kind": "InferencePool", "metadata": {"name": "llm", "ownerReferences": [reference]}}


@pytest.mark.parametrize(
    ("spec", "live", "without", "expected"),
    [
        pytest.param(ASKED, [live_pool("uid-1")], {}, ("True", "Applied"), id="it is there"),
        pytest.param(ASKED, [], {}, ("False", "Pending"), id="it is not there yet"),
        pytest.param(ASKED, [live_pool("other")], {}, ("False", "Pending"), id="one of somebody else is none"),
        pytest.param(
            ASKED, [], {"InferencePool": NO_EXTENSION}, ("False", "ExtensionNotInstalled"), id="no such kind here"
        ),
        pytest.param(
            ASKED, [], {"InferencePool": Failure("ApplyFailed", "m")}, ("False", "ApplyFailed"), id="it was refused"
        ),
        pytest.param(ASKED, [], {"ServiceMonitor": Failure("ApplyFailed", "m")}, ("False", "Pending"), id="not a pool"),
        pytest.param({}, [], {"InferencePool": NO_EXTENSION}, None, id="nobody asked"),
    ],
)
def test_what_the_status_says(service, spec, live, without, expected):
    old = {"type": "InferencePoolApplied", "status": "True", "reason": "Applied", "lastTransitionTime": "t"}
    resource = service(**spec, status={"conditions": [old]})
    found = status_changes(Seen(resource, live, without=without), understood(resource), None, 0.0)
    told = {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}
    assert told.get("InferencePoolApplied") == expected
    assert told["Ready"] == ("False", "Starting")


def test_on_one_machine_there_is_no_pool_and_it_is_said(service, tmp_path):
    assert "spec.inferencePool" in localize(parse(service(**ASKED)), tmp_path).notes
    assert "spec.inferencePool" not in localize(parse(service()), tmp_path).notes
