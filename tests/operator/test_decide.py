"""Events, paused services and what kubectl noted: decisions about one service as a whole."""

import json

import pytest

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.decide import Seen, events_for, look_again_after, plan_for, understood
from pagetide_operator.desired.children import Platform
from pagetide_operator.reconcile import trouble_of
from pagetide_operator.verdicts.failures import Failure
from pagetide_spec.errors import ResourceError
from pagetide_spec.names import ANNOTATION_TEMPLATE_HASH


def ready(status, reason, progress="Complete"):
    found = (("Ready", status, reason), ("Progressing", "False", progress))
    return {"conditions": [{"type": t, "status": s, "reason": r, "message": "m"} for t, s, r in found]}


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        pytest.param({}, ready("False", "Starting"), [("Normal", "Starting", "m")], id="a beginning"),
        pytest.param(ready("False", "Starting"), ready("True", "Ready"), [("Normal", "Ready", "m")], id="success"),
        pytest.param(
            ready("True", "Ready"), ready("False", "OOMKilled"), [("Warning", "OOMKilled", "m")], id="a failure"
        ),
        pytest.param(
            ready("False", "Starting"),
            ready("True", "Ready", "OOMKilled"),
            [("Normal", "Ready", "m"), ("Warning", "OOMKilled", "m")],
            id="a failure of the new version while the old one turns ready",
        ),
        pytest.param(ready("True", "Ready"), ready("True", "Ready"), [], id="no news"),
        pytest.param(ready("True", "Ready"), {"replicas": 2}, [], id="something else changed"),
        pytest.param(
            ready("True", "Ready"),
            ready("True", "Ready", "Unschedulable"),
            [("Warning", "Unschedulable", "m")],
            id="one more replica finds no room",
        ),
        pytest.param(
            ready("True", "Ready", "Unschedulable"),
            ready("True", "Ready", "ReplacingOneByOne"),
            [("Warning", "ReplacingOneByOne", "m")],
            id="old pods go first, for want of a device",
        ),
        pytest.param(ready("True", "Ready"), ready("True", "Ready", "RollingOut"), [], id="progress as it should be"),
    ],
)
def test_events(before, change, expected):
    assert events_for(before, change) == expected


def test_a_paused_service_is_not_touched(service):
    resource = service(annotations={"pagetide.dev/paused": "true"})
    found = plan_for(understood(resource), Seen(resource, []), Platform("i"), {}, 0.0)
    assert found.actions == ()


def test_a_field_that_kubectl_sent_and_the_server_dropped_is_refused(service):
    applied = service(engine={"maxNumSeq": 1})
    resource = service(annotations={"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)})
    with pytest.raises(ResourceError, match="did you mean maxNumSeqs"):
        understood(resource)


@pytest.mark.parametrize("noted", ["{", "[]", "null", '{"spec": 1}'])
def test_a_spoilt_note_of_kubectl_harms_nobody(service, noted):
    resource = service(annotations={"kubectl.kubernetes.io/last-applied-configuration": noted})
    assert understood(resource).name == "llm"


SINCE = "1970-01-01T00:01:40Z"


def child(kind, version, **more):
    annotations = {"metadata": {"name": "x", "annotations": {ANNOTATION_TEMPLATE_HASH: version}}}
    return {"kind": kind, **annotations, "spec": {"template": annotations}, **more}


WAITING = child(
    "Pod",
    "new",
    status={
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "message": "1 Insufficient nvidia.com/gpu.",
                "lastTransitionTime": SINCE,
            }
        ]
    },
)
ROLLING = [child("Deployment", "new"), child("Pod", "old")]


@pytest.mark.parametrize(
    ("children", "now", "expected"),
    [
        pytest.param([], 110.0, None, id="no Deployment yet"),
        pytest.param(ROLLING, 110.0, None, id="no pod waits"),
        pytest.param([*ROLLING, WAITING], 110.0, 20.0, id="patience is left"),
        pytest.param([*ROLLING, WAITING], 130.0, None, id="patience is over, and the decision made"),
        pytest.param([ROLLING[0], WAITING], 110.0, None, id="no old pod that could go first"),
    ],
)
def test_time_alone_is_waited_for_only_where_it_matters(service, children, now, expected):
    assert look_again_after(Seen(service(), children), 30, now) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(
            KeyError("x"),
            Failure("InternalError", "the operator failed (KeyError); its log has more"),
            id="a fault of ours",
        ),
        pytest.param(ApiError(0, "Unreachable", "x"), None, id="the server does not answer"),
        pytest.param(ApiError(503, "ServiceUnavailable", "x"), None, id="the server is busy"),
        pytest.param(ApiError(409, "Conflict", "x"), None, id="somebody was quicker"),
        pytest.param(ApiError(422, "Invalid", "x"), Failure("ApplyFailed", "x"), id="the server refuses it"),
        pytest.param(ApiError(403, "Forbidden", "x"), Failure("ApplyFailed", "x"), id="we may not"),
        pytest.param(ApiError(500, "InternalError", "x"), Failure("ApplyFailed", "x"), id="the server chokes on it"),
    ],
)
def test_what_an_error_means_for_the_status(error, expected):
    assert trouble_of([error]) == expected
    assert trouble_of([ApiError(503, "ServiceUnavailable", "x"), error]) == expected


def test_no_error_is_no_trouble():
    assert trouble_of([]) is None
