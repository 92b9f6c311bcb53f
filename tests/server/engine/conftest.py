"""The toy of `toy.py`, memory full of NaN, and what must be left of an engine: nothing."""

from __future__ import annotations

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from pagetide_kernels.caches import Caches
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.llm import LLM
from pagetide_server.model.runner import Runner

from .toy import AheadEngine, ToyEngine


@pytest.fixture
def toy_engine() -> type[ToyEngine]:
    """The class, for tests that set up their own scheduler."""
    return ToyEngine


@pytest.fixture
def ahead_engine() -> type[AheadEngine]:
    """The same, with async scheduling."""
    return AheadEngine


# More than any of the tests that are short of memory has.
POISONED_BLOCKS = 512


@pytest.fixture(scope="module")
def poisoned_memory():
    """KV caches and swap spaces of the module's engines begin as NaN: what is read before it is written shows."""
    allocate = Runner._allocate

    def poisoned(runner: Runner, blocks: int, device: torch.device) -> Caches:
        made = allocate(runner, blocks, device)
        for cache in made:
            for part in cache:
                # Swap spaces are large where no test sets them; their pages are to be taken only as far as needed.
                part[:POISONED_BLOCKS].fill_(float("nan"))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_allocate", poisoned)
        yield


GAUGES_AT_ZERO = (
    "requests_running",
    "requests_waiting",
    "requests_swapped",
    "oldest_waiting_seconds",
    "kv_cache_utilization_ratio",
    "batch_utilization_ratio",
)


def check_at_rest(llm: LLM) -> None:
    """No request has left anything behind, in the engine or in what its metrics say."""
    stats = llm.stats
    assert (stats.blocks_used, stats.blocks_swapped) == (0, 0), "a block was lost"
    metrics = ServerMetrics("m", "1")
    metrics.stats = stats
    families = text_string_to_metric_families(metrics.render().decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    for name in GAUGES_AT_ZERO:
        assert found[f"pagetide_{name}"] == 0, f"{name} is not back at zero"


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    """Whatever a test did with an `LLM`: when it closes, all of it is free again."""
    close = LLM.close

    def checked(self: LLM) -> None:
        if self._core is not None:
            check_at_rest(self)
        close(self)

    monkeypatch.setattr(LLM, "close", checked)
