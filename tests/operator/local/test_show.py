"""What people see."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from pagetide_operator.local import show
from pagetide_operator.local.show import Screen, log_handler, plain_table
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
    with Screen("text").progress("starting") as progress:
        for now in range(2, 600):
            progress.update(f"a 0/1, a-0: {'downloading' if now < 300 else 'loading weights'} {now % 100}%")
    assert capsys.readouterr().err.splitlines() == [
        "starting (2 s): a 0/1, a-0: downloading 2%", "starting (300 s): a 0/1, a-0: loading weights 0%",
    ]  # fmt: skip


def test_in_json_everything_that_is_said_is_an_object_a_line(monkeypatch, capsys):
    monkeypatch.setattr(show._stderr, "_force_terminal", True)
    now = 5.0
    monkeypatch.setattr(show.time, "monotonic", lambda: now)
    screen = Screen("json")
    screen.note("out of luck", logging.ERROR)
    with screen.progress("starting") as progress:
        now = 7.0
        progress.update("a 0/1")
    log_handler("json").handle(logging.makeLogRecord({"msg": "slow", "levelname": "WARNING"}))
    condition = {"type": "Ready", "status": "True", "message": "all is well"}
    screen.table([{"name": "a", "conditions": [condition]}])
    screen.news("b is gone")
    out, err = ([json.loads(line) for line in text.splitlines()] for text in capsys.readouterr())
    assert [(line["level"], line["message"]) for line in err] == [
        ("error", "out of luck"), ("info", "starting (2 s): a 0/1"), ("warning", "slow"),
    ]  # fmt: skip
    assert [line["message"] for line in out] == ["a is Ready: all is well", "b is gone"]


def test_a_stream_that_cannot_be_written_is_told_once_and_ends_nothing(monkeypatch, capsys, caplog):
    condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": "all is well"}
    shown = {"name": "a", "modelUri": "hf://o/n", "readyReplicas": 1, "desiredReplicas": 1, "ageSeconds": 3}
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", full)
        screen = Screen("text")
        screen.table([{**shown, "conditions": [condition]}])
        screen.news("listening on http://a")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        screen.note("out of luck")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("stdout cannot be written: No space left on device; NAME ")
    assert "hf://o/n" in said


def test_plain_table_is_aligned():
    lines = plain_table([("a", "hf://x/y", "True", "1", "1", "AllReplicasReady", "3s")]).splitlines()
    assert lines[0].index("READY") == lines[1].index("True")
    assert lines[0].index("AGE") == lines[1].index("3s")
