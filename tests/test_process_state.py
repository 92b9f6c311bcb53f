"""What the tests of one file do to the process does not reach those of the next."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import warnings

import pytest

from pagetide_spec.logs import attach_log, set_up_logging

from .process_state import ProcessState


def test_a_log_that_was_set_up_is_gone() -> None:
    before = ProcessState()
    root, level, handlers = logging.root, logging.root.level, logging.root.handlers[:]
    logging.getLogger("pagetide_place.part")  # so that its parent is held by a place alone, as one is at first
    shown = warnings.showwarning
    set_up_logging("debug", "json")
    attach_log("pagetide_place", "error", "text")
    before.put_back()
    assert (root.level, root.handlers, warnings.showwarning) == (level, handlers, shown)
    assert logging.getLogger("pagetide_place.part").getEffectiveLevel() == level


def test_a_library_that_was_imported_keeps_its_level_but_no_closed_stream() -> None:
    before = ProcessState()
    logger, streams = logging.getLogger("library"), [io.StringIO(), io.StringIO()]
    logger.handlers[:] = map(logging.StreamHandler, streams)
    logger.setLevel(logging.ERROR)
    streams[0].close()
    before.put_back()
    assert [handler.stream for handler in logger.handlers] == streams[1:]
    assert logger.level == logging.ERROR
    logger.handlers.clear()


def test_environment_signals_and_heap() -> None:
    before = ProcessState()
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    os.environ["PAGETIDE_TEST"] = "1"
    del os.environ["PATH"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()
    before.put_back()
    assert (os.environ, signal.getsignal(signal.SIGTERM), gc.get_freeze_count()) == (environment, handler, 0)


def test_a_signal_that_is_not_handled_from_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    ProcessState().put_back()
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGTERM) == handler
