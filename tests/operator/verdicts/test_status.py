"""What a service says of itself, from what its children say."""

import pytest

from pagetide_operator.verdicts.failures import Failure
from pagetide_operator.verdicts.status import Children, Verdict, changes, invalid_status, service_status
from pagetide_spec.errors import ResourceError
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


@pytest.mark.parametrize(
    ("live", "pods", "expected"),
    [
        pytest.param(deployment(ready=2, replicas=2), [], ("True", "Ready", "2 of 2 replicas serve"), id="all serve"),
        pytest.param(deployment(ready=1, replicas=2), [], ("False", "Starting", "1 of 2 replicas serve"), id="one yet"),
        pytest.param(None, [], ("False", "Starting", "0 of 2 replicas serve"), id="nothing yet"),
        pytest.param(
            deployment(ready=0), [pod(state=LOADING)], ("False", "Starting", "0 of 2 replicas serve"), id="made now"
        ),
        pytest.param(
            deployment(ready=0),
            [waiting("ErrImagePull", "rpc error after 10s")],
            ("False", "ImagePullBackOff", "image 'i' cannot be pulled"),
            id="no image, at the first try",
        ),
        pytest.param(
            deployment(ready=0),
            [waiting("ImagePullBackOff", "back-off 20s")],
            ("False", "ImagePullBackOff", "image 'i' cannot be pulled"),
            id="no image, later: the same text",
        ),
        pytest.param(
            deployment(ready=0),
            [waiting("CreateContainerConfigError", 'secret "hub" not found')],
            ("False", "CreateContainerConfigError", 'container server: secret "hub" not found'),
            id="a Secret is missing",
        ),
        pytest.param(
            deployment(ready=0),
            [ended(3, message="loading\nValueError: no such model\n")],
            ("False", "CrashLoopBackOff", "container server ended with exit code 3: ValueError: no such model"),
            id="a crash, with the last line of its log",
        ),
        pytest.param(
            deployment(ready=0),
            [ended(3, state={"running": {}}, message="x")],
            ("False", "CrashLoopBackOff", "container server ended with exit code 3: x"),
            id="a crash, while it runs again and is not ready",
        ),
        pytest.param(
            deployment(ready=2, replicas=2),
            [ended(3, state={"running": {}}, ready=True)],
            ("True", "Ready", "2 of 2 replicas serve"),
            id="a crash that is over",
        ),
        pytest.param(
            deployment(ready=0),
            [ended(0, reason="Completed", state={"waiting": {"reason": "CrashLoopBackOff"}})],
            ("False", "CrashLoopBackOff", "container server ended with exit code 0"),
            id="a server that ends though nobody told it to",
        ),
        pytest.param(
            deployment(ready=0, conditions=[LATE]),
            [],
            ("False", "ProgressDeadlineExceeded", "pods were not ready within startupSeconds"),
            id="loading for ever",
        ),
        pytest.param(
            deployment(ready=2, replicas=3, updated=1),
            [unscheduled("Insufficient nvidia.com/gpu")],
            ("True", "Ready", "2 of 2 replicas serve"),
            id="a surge pod waits for a device while all serve",
        ),
        pytest.param(
            deployment(ready=0),
            [ended(137, reason="OOMKilled")],
            ("False", "OOMKilled", "container server took more memory than its limit"),
            id="out of memory",
        ),
        pytest.param(
            deployment(ready=0),
            [unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")],
            ("False", "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
            id="no GPU",
        ),
        pytest.param(
            deployment(ready=0),
            [unscheduled('persistentvolumeclaim "models" not found')],
            ("False", "VolumePending", 'persistentvolumeclaim "models" not found'),
            id="no volume",
        ),
        pytest.param(
            deployment(ready=0, conditions=[QUOTA]),
            [],
            ("False", "QuotaExceeded", "exceeded quota: q"),
            id="a quota",
        ),
        pytest.param(
            deployment(ready=0),
            [unscheduled("Insufficient nvidia.com/gpu"), ended(3)],
            ("False", "CrashLoopBackOff", "container server ended with exit code 3"),
            id="the worst of two faults",
        ),
        pytest.param(
            deployment(ready=2, replicas=3, updated=1),
            [ended(3)],
            ("False", "CrashLoopBackOff", "container server ended with exit code 3; 2 of 2 replicas serve"),
            id="a new version crashes while the old one serves",
        ),
        pytest.param(
            deployment(ready=2, replicas=3, updated=2),
            [pod("old", state=LOADING, lastState={"terminated": {"exitCode": 3}})],
            ("True", "Ready", "2 of 2 replicas serve"),
            id="what ailed the old version is no matter",
        ),
        pytest.param(
            deployment(ready=2, replicas=2),
            [pod(going=True, lastState={"terminated": {"exitCode": 137}})],
            ("True", "Ready", "2 of 2 replicas serve"),
            id="a pod on its way out is no matter",
        ),
    ],
)
def test_ready(service, live, pods, expected):
    assert conditions(status_of(service(replicas=2), live, pods))["Ready"] == expected


@pytest.mark.parametrize(
    ("spec", "status", "live", "expected"),
    [
        pytest.param({"replicas": 0}, {}, deployment(0, 0), ("False", "ScaledToZero"), id="stopped by hand"),
        pytest.param(
            {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
            {"desiredReplicas": 0},
            deployment(0, 0),
            ("True", "ScaledToZero"),
            id="asleep, to be woken by a request",
        ),
        pytest.param(
            {"autoscaling": {"maxReplicas": 4}},
            {"desiredReplicas": 4},
            deployment(1, 4),
            ("True", "Ready"),
            id="growing",
        ),
        pytest.param(
            {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}},
            {"desiredReplicas": 2},
            deployment(1, 2),
            ("False", "Starting"),
            id="fewer than the least",
        ),
    ],
)
def test_ready_of_scaled_services(service, spec, status, live, expected):
    assert conditions(status_of(service(status=status, **spec), live))["Ready"][:2] == expected


@pytest.mark.parametrize(
    ("live", "pods", "expected"),
    [
        pytest.param(deployment(), [], ("False", "Complete"), id="at rest"),
        pytest.param(None, [], ("True", "Starting"), id="nothing yet"),
        pytest.param(deployment(ready=0), [], ("True", "Starting"), id="loading"),
        pytest.param(deployment(replicas=2, updated=1), [], ("True", "RollingOut"), id="rolling"),
        pytest.param(deployment(), [ended(3)], ("False", "CrashLoopBackOff"), id="stuck"),
        pytest.param(
            deployment(surge=0, missing=1, replicas=2, updated=1),
            [unscheduled("Insufficient nvidia.com/gpu")],
            ("True", "ReplacingOneByOne"),
            id="one by one for want of a GPU",
        ),
    ],
)
def test_progressing(service, live, pods, expected):
    assert conditions(status_of(service(), live, pods))["Progressing"][:2] == expected


def test_an_init_container_that_has_done_its_work_is_no_failure(service):
    made = pod(state=LOADING)
    made["status"]["initContainerStatuses"] = [
        {"name": "init", "ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    ]
    assert conditions(status_of(service(), deployment(ready=0), [made]))["Ready"][1] == "Starting"


def test_whether_load_decides_is_told_anew_when_that_changes(service):
    before = status_of(service(), deployment())
    assert conditions(before)["ScalingActive"][:2] == ("False", "FixedReplicas")
    after = status_of(service(status=before, autoscaling={"maxReplicas": 2}), deployment())
    assert conditions(after)["ScalingActive"][:2] == ("False", "NoDecision")


def test_what_could_not_be_applied_is_told(service):
    found = conditions(status_of(service(), deployment(), trouble=Failure("ApplyFailed", "no such field")))
    assert found["Ready"] == ("False", "ApplyFailed", "no such field; 1 of 1 replicas serve")


def test_an_invalid_resource_names_the_field_and_keeps_its_pods(service):
    resource = service(engine={"maxNumSeq": 1})
    with pytest.raises(ResourceError) as caught:
        parse(resource)
    found = invalid_status(caught.value, resource, deployment(ready=1), NOW)
    assert conditions(found)["Ready"] == (
        "False",
        "InvalidSpec",
        "spec.engine.maxNumSeq: 1: no such setting; did you mean maxNumSeqs?; the pods of the last valid version stay",
    )
    assert found["readyReplicas"] == 1


def test_counts_selector_and_address(service):
    found = status_of(service(replicas=3), deployment(ready=2, replicas=3))
    assert (found["replicas"], found["readyReplicas"], found["desiredReplicas"]) == (3, 2, 3)
    assert found["url"] == "http://llm.ns.svc"
    assert "pagetide.dev/inferenceservice=llm" in found["selector"]
    assert found["observedGeneration"] == 2


def test_the_same_state_later_is_the_same_status(service):
    before = status_of(service(), deployment())
    after = status_of(service(status=before), deployment(), now=LATER)
    assert changes(before, after) == {}


def test_a_condition_keeps_its_time_until_its_status_changes(service):
    def since(status, **more):
        found = status_of(service(status=status), now=LATER, **more)
        return next(c["lastTransitionTime"] for c in found["conditions"] if c["type"] == "Ready")

    before = status_of(service(), deployment(ready=0))
    assert since(before, live=deployment(ready=0), pods=[ended(3)]) == NOW
    assert since(before, live=deployment(ready=1)) == LATER


def test_conditions_of_others_stay(service):
    other = {"type": "Audited", "status": "True", "reason": "x", "message": "", "lastTransitionTime": NOW}
    assert other in status_of(service(status={"conditions": [other]}))["conditions"]


def test_the_autoscalers_conditions_stay_until_it_says_something_new(service):
    told = [Verdict("ScalingActive", True, "Measured", "m"), Verdict("ScalingLimited", True, "MaxReplicas", "m")]
    scaled = {"autoscaling": {"maxReplicas": 2}}
    live = Children(deployment(), [])
    before = service_status(parse(service(**scaled)), {}, live, 1, None, NOW, told)
    reasons = {c["type"]: c["reason"] for c in before["conditions"]}
    assert (reasons["ScalingActive"], reasons["ScalingLimited"]) == ("Measured", "MaxReplicas")
    assert status_of(service(status=before, **scaled), deployment())["conditions"] == before["conditions"]
    fixed = {c["type"]: c["reason"] for c in status_of(service(status=before), deployment())["conditions"]}
    assert fixed["ScalingActive"] == "FixedReplicas"
    assert "ScalingLimited" not in fixed


def test_only_what_changed_is_written(service):
    before = status_of(service(), deployment(ready=0))
    after = status_of(service(status=before), deployment(ready=1), now=LATER)
    assert set(changes(before, after)) == {"readyReplicas", "conditions"}
