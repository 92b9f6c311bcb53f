"""Decisions of the local runner as tables."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from pagetide_operator.local.plan import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    STABLE_S,
    Action,
    Seen,
    failures_after,
    is_broken,
    plan,
    restart_delay,
)
from pagetide_operator.local.process import describe_exit, free_port, last_line
from pagetide_operator.local.service import localize, replica_command
from pagetide_operator.local.show import plain_table
from pagetide_operator.local.status import (
    ReplicaStatus,
    age,
    changes,
    describe,
    has_settled,
    is_hopeless,
    ready_condition,
    summary,
)
from pagetide_spec.errors import SettingError
from pagetide_spec.resource import parse


@pytest.mark.parametrize(
    ("desired", "seen", "actions"),
    [
        pytest.param(["a"], [], ["start a"], id="what is missing is started"),
        pytest.param(["a"], [Seen("a", is_running=True)], [], id="what runs is left alone"),
        pytest.param([], [Seen("a", is_running=True)], ["stop a"], id="what is not desired is stopped"),
        pytest.param([], [Seen("a", is_running=True, is_stopping=True)], [], id="what stops is not stopped again"),
        pytest.param(["a"], [Seen("a", restart_at=101)], [], id="a failed one waits for its time"),
        pytest.param(["a"], [Seen("a", restart_at=100)], ["start a"], id="a failed one is started at its time"),
        pytest.param(["a"], [Seen("a", broken=True)], [], id="a broken one is never started"),
        pytest.param(["a"], [Seen("a", is_running=True, is_stopping=True)], [], id="one that stops is let end first"),
        pytest.param(["b"], [Seen("a", is_running=True)], ["stop a", "start b"], id="stops come before starts"),
        pytest.param([], [Seen("a")], [], id="what is neither desired nor running is no work"),
        pytest.param(["a", "b", "c"], [], ["start a", "start b"], id="two load at once"),
        pytest.param(
            ["a", "b", "c"],
            [Seen("a", is_running=True), Seen("b", is_running=True, is_loading=True)],
            ["start c"],
            id="another starts when one of them is ready",
        ),
        pytest.param(
            ["a", "b", "c"],
            [Seen(name, is_running=True, is_loading=True) for name in "ab"],
            [],
            id="while two load the others wait",
        ),
    ],
)
def test_plan(desired, seen, actions):
    assert plan(desired, seen, now=100) == [Action(*text.split()) for text in actions]


def test_restarts_slow_down_to_a_limit():
    delays = [restart_delay(n) for n in range(1, 40)]
    assert delays[:4] == [FIRST_DELAY_S * f for f in (1, 2, 4, 8)]
    assert max(delays) == delays[-1] == LONGEST_DELAY_S


@pytest.mark.parametrize(
    ("failures", "ran_s", "after"),
    [
        pytest.param(0, 1, 1, id="the first failure"),
        pytest.param(3, 1, 4, id="one failure after the other"),
        pytest.param(3, STABLE_S, 1, id="a long good run forgives"),
    ],
)
def test_failures(failures, ran_s, after):
    assert failures_after(failures, ran_s) == after


@pytest.mark.parametrize(
    ("code", "was_ready", "broken"),
    [(2, False, True), (2, True, False), (1, False, False), (0, False, False), (-9, False, False)],
)
def test_only_a_wrong_setting_at_the_start_is_final(code, was_ready, broken):
    assert is_broken(code, was_ready) == broken


def replica(state: str, restarts: int = 0) -> ReplicaStatus:
    return ReplicaStatus("a-0", state, f"is {state}", restarts=restarts)


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


def service(**spec):
    return parse(
        {
            "apiVersion": "pagetide.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "a"},
            "spec": {"model": {"uri": "hf://org/name"}, **spec},
        }
    )


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
    assert changes([starting], [ready]) == ["a is Ready: 1 of 1 replicas serve"]
    assert changes([ready], [starting]) == ["a is not Ready: a-0: starting"]
    assert summary([starting, ready]) == "a 0/1, a-0: starting"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (303, "5m3s"),
        (720, "12m"),
        (12000, "3h20m"),
        (187200, "2d4h"),
        (1e6, "11d"),
    ],
)
def test_age_is_written_like_kubectl_does(seconds, text):
    assert age(seconds) == text


def test_plain_table_is_aligned():
    lines = plain_table([("a", "hf://x/y", "True", "1", "1", "AllReplicasReady", "3s")]).splitlines()
    assert lines[0].index("READY") == lines[1].index("True")
    assert lines[0].index("AGE") == lines[1].index("3s")


@pytest.mark.parametrize(("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL")])
def test_describe_exit(code, text):
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b"one\ntwo\n", "two", id="the last line"),
        pytest.param(b"one\n\n  \n", "one", id="blank lines do not count"),
        pytest.param(b"loading\n12:00 INFO pagetide.access 127.0.0.1 GET /readyz 503\n", "loading", id="no probes"),
        pytest.param(b"x" * 10_000 + b"\nend", "end", id="only the end is read"),
        pytest.param(b"\xff\xfe\n", "\ufffd\ufffd", id="bytes that are no text"),
        pytest.param(b"", "", id="an empty log"),
        pytest.param(None, "", id="no log"),
    ],
)
def test_last_line(content, line, tmp_path):
    log = tmp_path / "log"
    if content is not None:
        log.write_bytes(content)
    assert last_line(log) == line


def test_a_port_that_is_taken_is_not_given():
    ports = {free_port(()) for _ in range(20)}
    busy = socket.create_server(("127.0.0.1", min(ports)))
    with busy, pytest.raises(OSError, match="no free port"):
        free_port(set(range(20000, 32000)) - {min(ports)})


def test_a_claim_is_a_folder_under_the_volumes(tmp_path):
    (tmp_path / "models" / "deep").mkdir(parents=True)
    (tmp_path / "models" / "deep" / "x.gguf").touch()
    found = localize(service(model={"uri": "pvc://models/deep/x.gguf"}), tmp_path)
    assert found.model == str(tmp_path / "models" / "deep" / "x.gguf")
    assert localize(service(model={"uri": "pvc://models"}), tmp_path).model == str(tmp_path / "models")
    with pytest.raises(SettingError, match=r"spec\.model\.uri.*nothing at"):
        localize(service(model={"uri": "pvc://models/y.gguf"}), tmp_path)


def test_the_command_of_a_replica():
    found = localize(
        service(
            model={"uri": "hf://org/name", "revision": "v1", "servedName": "n"},
            engine={"maxNumSeqs": 8, "enablePrefixCaching": False},
            drainSeconds=7,
        ),
        Path("volumes"),
    )
    command = replica_command(found, 1234)
    assert command[:4] == [sys.executable, "-m", "pagetide_server", "org/name"]
    assert set(command[4:]) == {
        "--served-model-name=n",
        "--revision=v1",
        "--max-num-seqs=8",
        "--enable-prefix-caching=false",
        "--shutdown-timeout-s=7.0",
        "--host=127.0.0.1",
        "--port=1234",
    }


def test_what_has_no_effect_here_is_said():
    found = localize(
        service(
            replicas=3,
            apiKeySecretRef={"name": "s", "key": "k"},
            resources={"limits": {"nvidia.com/gpu": 1}},
            template={
                "nodeSelector": {"a": "b"},
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
            },
        ),
        Path("volumes"),
    )
    assert found.replicas == 3
    assert found.environment == {"A": "1"}
    for word in ("apiKeySecretRef", "resources", "nodeSelector", "env[1].valueFrom (B)"):
        assert any(word in note for note in found.notes), word


def test_autoscaling_starts_at_least_one():
    scaling = {"minReplicas": 0, "maxReplicas": 3}
    assert localize(service(autoscaling=scaling), Path("volumes")).replicas == 1
