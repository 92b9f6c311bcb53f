"""One `LLM` for all tests that leave it as it was."""

from __future__ import annotations

import pytest

from pagetide_server import LLM

from .calls import SETTINGS


@pytest.fixture(scope="module")
def shared(tiny_model):
    with LLM(str(tiny_model("llama")), **SETTINGS) as made:
        yield made


@pytest.fixture
def llm(shared):
    """The model; whatever a test did with it, nothing may be left in the engine."""
    yield shared
    stats = shared.stats
    assert (stats.running, stats.waiting, stats.swapped, stats.blocks_used, stats.blocks_swapped) == (0, 0, 0, 0, 0)
