"""What is reported about local services."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagetide_operator.local.service import localize
from pagetide_operator.local.status import (
    ReplicaStatus,
    changes,
    describe,
    has_settled,
    is_hopeless,
    ready_condition,
    summary,
)

from .resources import service


def replica(state: str, restarts: int = 0) -> ReplicaStatus:
    return ReplicaStatus("a-0", state, f"is {state}", restarts=restarts)


LEAVES = ReplicaStatus("a-0", "draining", leaves=True)


@pytest.mark.parametrize(
    ("desired", "replicas", "status", "reason"),
    [
        pytest.param(1, [], "False", "Starting", id="nothing was started yet"),
        pytest.param(1, [replica("starting")], "False", "Starting", id="the first start"),
        pytest.param(1, [replica("starting", 2)], "False", "CrashLoopBackOff", id="a start after failures"),
        pytest.param(1, [replica("waiting")], "False", "CrashLoopBackOff", id="between two starts"),
        pytest.param(1, [replica("broken")], "False", "WrongSetting", id="a wrong setting"),
        pytest.param(2, [replica("ready"), replica("waiting")], "False", "CrashLoopBackOff", id="one of two fails"),
        pytest.param(2, [replica("ready"), replica("starting")], "False", "Starting", id="one of two starts"),
        pytest.param(2, [replica("ready", 3)] * 2, "True", "Ready", id="all serve, whatever was before"),
        pytest.param(1, [replica("draining")], "False", "Starting", id="the only one drains"),
        pytest.param(0, [], "False", "ScaledToZero", id="none is wanted"),
    ],
)
def test_ready_condition(desired, replicas, status, reason):
    condition = ready_condition(desired, replicas)
    assert (condition["status"], condition["reason"]) == (status, reason)
    assert condition["message"]


@pytest.mark.parametrize(
    ("desired", "replicas", "status", "reason"),
    [
        pytest.param(1, [LEAVES], "True", "Ready", id="the last one drains, towards none"),
        pytest.param(0, [replica("draining")], "True", "ScaledToZero", id="it ends"),
        pytest.param(1, [replica("draining")], "False", "Starting", id="woken while the one before ends"),
    ],
)
def test_ready_of_a_service_that_goes_to_sleep(desired, replicas, status, reason):
    scaled = service(autoscaling={"minReplicas": 0, "maxReplicas": 1})
    told = describe(localize(scaled, Path("volumes")), replicas, desired, 0.0, 1.0)
    (condition,) = told["conditions"]
    assert (condition["status"], condition["reason"]) == (status, reason)
    assert told["readyReplicas"] == (reason == "Ready")


def test_what_several_replicas_say_is_said_once():
    said = {"a-0": "no hub", "a-1": "no room", "a-2": "no hub"}
    replicas = [ReplicaStatus(name, "waiting", message) for name, message in said.items()]
    assert ready_condition(3, replicas)["message"] == "a-0, a-2: no hub; a-1: no room"


def told(desired, *states, restarts=0):
    """A service of that many desired replicas, as it is described."""
    replicas = [ReplicaStatus(f"a-{i}", state, restarts=restarts) for i, state in enumerate(states)]
    return describe(localize(service(replicas=desired), Path("volumes")), replicas, desired, 0.0, 1.0)


@pytest.mark.parametrize(
    ("described", "settled", "hopeless"),
    [
        pytest.param(told(1), False, False, id="nothing was started yet"),
        pytest.param(told(2, "ready", "starting"), False, False, id="one still starts"),
        pytest.param(told(2, "ready", "waiting"), True, False, id="one has failed once"),
        pytest.param(told(1, "starting", restarts=1), True, False, id="it starts again"),
        pytest.param(told(2, "broken"), False, False, id="one is broken, one not started"),
        pytest.param(told(2, "broken", "broken"), True, True, id="all are broken"),
        pytest.param(told(0), True, False, id="none is wanted"),
    ],
)
def test_when_the_start_is_over(described, settled, hopeless):
    assert has_settled(described) == settled
    assert is_hopeless([described]) == hopeless
    assert not is_hopeless([described, told(1, "ready")])


def test_only_changes_are_told():
    starting, ready = told(1, "starting"), told(1, "ready")
    assert changes([starting], [starting]) == []
    assert changes((), [starting]) == ["a is not Ready: a-0: starting"], "what was unknown has changed"
    assert changes([starting], [ready]) == ["a is Ready: 1 of 1 replicas serve"]
    assert changes([ready], [starting]) == ["a is not Ready: a-0: starting"]
    assert summary([starting, ready]) == "a 0/1, a-0: starting"
