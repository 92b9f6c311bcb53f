"""What people see."""

from __future__ import annotations

import pytest

from pagetide_operator.local import show
from pagetide_operator.local.show import Progress, plain_table
from pagetide_operator.local.status import (
    age,
)


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


def test_without_a_terminal_each_phase_of_a_start_is_one_line(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(show.time, "monotonic", lambda: now)
    with Progress("starting") as progress:
        for now in range(2, 600):
            progress.update(f"a 0/1, a-0: {'downloading' if now < 300 else 'loading weights'} {now % 100}%")
    assert capsys.readouterr().err.splitlines() == [
        "starting (2 s): a 0/1, a-0: downloading 2%", "starting (300 s): a 0/1, a-0: loading weights 0%",
    ]  # fmt: skip


def test_plain_table_is_aligned():
    lines = plain_table([("a", "hf://x/y", "True", "1", "1", "AllReplicasReady", "3s")]).splitlines()
    assert lines[0].index("READY") == lines[1].index("True")
    assert lines[0].index("AGE") == lines[1].index("3s")
