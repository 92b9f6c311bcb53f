"""Engines on poisoned memory, some of which schedule asynchronously."""

from __future__ import annotations

from typing import Any

import pytest

from pagetide_server import LLM, factory
from pagetide_server.model.runner import Runner

from .engines import demanding_answers


@pytest.fixture(scope="module", autouse=True)
def _poisoned(poisoned_memory):
    """For every engine here, those of fixtures included."""


@pytest.fixture
def ahead(monkeypatch):
    """Engines begin a step before the tokens of the one before are known, as on a GPU; counts how often."""
    begun = []
    execute = Runner.execute

    def counted(runner, step, device_tokens=None):
        if device_tokens is not None:
            begun.append(len(step.rows))
        return execute(runner, step, device_tokens)

    monkeypatch.setattr(factory, "async_scheduling", lambda loaded: True)
    monkeypatch.setattr(Runner, "execute", counted)
    return begun


@pytest.fixture(scope="module")
def undisturbed(tiny_model) -> list[list[Any]]:
    with LLM(str(tiny_model("llama")), dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        found = demanding_answers(llm)
        assert llm.stats.preemptions_swap + llm.stats.preemptions_recompute == 0
    assert all(12 <= len(text) <= 18 for text, _, _ in found[0])
    return found
