"""In what order, and on which stream, CUDA graphs are recorded; a stand-in takes the device's place."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import pytest
import torch

from pagetide_server.model.graphs import CudaRecorder

Toy = types.SimpleNamespace


class FakeCuda:
    """What `CudaRecorder` asks of torch.cuda; `state` is what a call of the work would meet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state: list[str] = []
        self.mode, self.streams, self.waits = 0, 0, []
        for name in ("Stream", "current_stream", "stream", "CUDAGraph", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: setattr(self, "mode", mode))

    def Stream(self) -> Toy:
        self.streams += 1
        return self._stream(f"side {self.streams}")

    def current_stream(self) -> Toy:
        return self._stream("main")

    def _stream(self, name: str) -> Toy:
        return Toy(name=name, wait_stream=lambda other: self.waits.append((name, other.name)))

    @contextlib.contextmanager
    def _within(self, name: str) -> Iterator[None]:
        self.state.append(name)
        yield
        self.state.pop()

    def stream(self, stream: Toy) -> contextlib.AbstractContextManager[None]:
        return self._within(stream.name)

    def CUDAGraph(self) -> Toy:
        return Toy(pool=lambda: "a pool", replay=lambda: None)

    def graph(self, graph: Toy, pool: object) -> contextlib.AbstractContextManager[None]:
        return self._within(f"recording in {pool}")


def test_work_is_done_on_one_side_stream_before_it_is_recorded_in_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, recorder, met = FakeCuda(monkeypatch), CudaRecorder(), []
    for _ in range(2):
        recorder(lambda: met.append((*cuda.state, cuda.mode)))
    first = [("side 1", 0), ("side 1", "error"), ("recording in None", 0)]
    assert met == [*first, ("side 1", 0), ("recording in a pool", 0)]
    assert cuda.waits == 2 * [("side 1", "main"), ("main", "side 1")]


def test_work_that_waits_is_found_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, met = FakeCuda(monkeypatch), []

    def work() -> None:
        met.append(cuda.mode)
        if cuda.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        CudaRecorder()(work)
    assert (met, cuda.mode) == ([0, "error"], 0)
