"""What to start and what to stop, as tables."""

from __future__ import annotations

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
