"""Ready and Progressing of a service, one row a state of its children."""

import pytest

from pagetide_spec.names import ANNOTATION_DRAINING

from .states import LATE, LOADING, QUOTA, conditions, deployment, ended, pod, status_of, unscheduled, waiting


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


def test_ready_holds_while_the_last_pod_drains(service):
    going = pod(ready=True, state={"running": {}})
    going["metadata"]["annotations"] |= {ANNOTATION_DRAINING: "2030-01-01T00:00:00Z"}
    resource = service(status={"desiredReplicas": 1}, autoscaling={"minReplicas": 0, "maxReplicas": 2})
    assert conditions(status_of(resource, deployment(1, 1), [going]))["Ready"][:2] == ("True", "Ready")


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
            {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
            {"desiredReplicas": 0},
            deployment(1, 1),
            ("True", "ScaledToZero"),
            id="the last one goes",
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
