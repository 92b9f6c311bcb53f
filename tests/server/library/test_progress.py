"""The `LLM` class: what is shown and logged meanwhile."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from pagetide_server import LLM, requests
from pagetide_server.wire.checks import check_params

from .calls import GREEDY, SETTINGS, greedy


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _be_a_terminal(monkeypatch, stream):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_the_form_that_was_asked_for(tiny_model, capsys, monkeypatch, form):
    # As in a program that has set up no logging.
    logger = logging.getLogger("pagetide_server")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    LLM(str(tiny_model("llama")), log_format=form, **SETTINGS).close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "KV cache" in line]
    assert len(lines) == 1
    assert lines[0].startswith("{") == (form == "json")
    if form == "json":
        assert json.loads(lines[0])["level"] == "info"


def test_many_prompts_are_encoded_together_and_their_parameters_checked_once(llm, monkeypatch):
    _be_a_terminal(monkeypatch, Terminal)
    encoded, checked = [], []
    encode_batch = llm._tokenizer.encode_batch

    def encode(texts, **options):
        encoded.append((list(texts), "prompts" in sys.stderr.getvalue()))
        return encode_batch(texts, **options)

    def check(params, ready):
        checked.append(params)
        return check_params(params, ready)

    monkeypatch.setattr(llm._tokenizer, "encode_batch", encode)
    monkeypatch.setattr(requests, "check_params", check)
    other = greedy(max_tokens=2)
    results = llm.generate(["a", [5], "b", "c"], [GREEDY, GREEDY, other, GREEDY])
    assert [r.prompt for r in results] == ["a", None, "b", "c"]
    # The bar is there before the work begins.
    assert encoded == [(["a", "b", "c"], True)]
    assert checked == [GREEDY, other]


@pytest.mark.parametrize(
    ("stream", "prompts", "wanted", "shown"),
    [
        pytest.param(Terminal, 3, None, True, id="many prompts on a terminal"),
        pytest.param(Terminal, 1, None, False, id="one prompt on a terminal"),
        pytest.param(io.StringIO, 3, None, False, id="many prompts elsewhere"),
        pytest.param(Terminal, 3, False, False, id="not wanted"),
    ],
)
def test_the_progress_bar(llm, monkeypatch, stream, prompts, wanted, shown):
    _be_a_terminal(monkeypatch, stream)
    llm.generate([[5 + i] for i in range(prompts)], GREEDY, progress=wanted)
    written = sys.stderr.getvalue()
    assert (f"{prompts}/{prompts}" in written) == shown
    assert bool(written) == shown


def test_loading_shows_a_bar_on_a_terminal(tiny_model, monkeypatch):
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")  # so that loading them is the last phase
    _be_a_terminal(monkeypatch, Terminal)
    LLM(str(tiny_model("llama")), **SETTINGS).close()
    assert "loading weights" in sys.stderr.getvalue()


def test_loading_is_logged_elsewhere(tiny_model, caplog, monkeypatch):
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")  # so that loading them is the last phase
    LLM(str(tiny_model("llama")), **SETTINGS).close()
    stages = [r.getMessage() for r in caplog.records if r.getMessage().startswith("loading: ")]
    assert "loading: loading weights 0%" in stages
    assert stages[-1] == "loading: loading weights 100%"


def test_blocks_are_logged_if_asked_for(tiny_model, caplog):
    with LLM(str(tiny_model("llama")), log_blocks=True, **SETTINGS) as llm:
        llm.generate([list(range(10, 50))], greedy(n=2, max_tokens=10))
    lines = [r for r in caplog.records if getattr(r, "blocks", None) is not None]
    assert all(r.levelno == logging.INFO for r in lines)
    assert lines[0].getMessage() == "allocate blocks [0, 1, 2] of request llm-0, answer 0"
    held: dict[int, list[int]] = {0: [], 1: []}
    for line in lines:
        for block in line.blocks:
            (held[line.index].append if line.getMessage().startswith("allocate") else held[line.index].remove)(block)
    assert held == {0: [], 1: []}
    assert {r.request_id for r in lines} == {"llm-0"}


def test_blocks_are_not_logged_otherwise(tiny_model, caplog):
    with LLM(str(tiny_model("llama")), **SETTINGS) as llm:
        llm.generate([[5] * 40], GREEDY)
    assert not [r for r in caplog.records if hasattr(r, "blocks")]
