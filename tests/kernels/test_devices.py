"""Every launcher runs with the GPU of its tensors as the current one."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from pagetide_kernels.gpu import gated, move_blocks, paged_attention, rms_norm, rotary_cache, sample
from pagetide_kernels.gpu.devices import on_its_device

ON_GPU_1 = types.SimpleNamespace(is_cuda=True, get_device=lambda: 1)
ON_CPU = types.SimpleNamespace(is_cuda=False)


@pytest.mark.parametrize(
    ("current", "argument", "entered"),
    [
        pytest.param(0, ON_GPU_1, [1], id="a tensor on another GPU than the current one"),
        pytest.param(0, [ON_GPU_1, ON_GPU_1], [1], id="a list of such"),
        pytest.param(1, ON_GPU_1, [], id="on the current one"),
        pytest.param(0, ON_CPU, [], id="on the CPU"),
        pytest.param(0, [], [], id="nothing"),
    ],
)
def test_the_launch_is_where_the_tensor_is(
    current: int, argument: object, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        seen.append(index)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", device)
    assert on_its_device(lambda first, second: (list(seen), second))(argument, 5) == (entered, 5)


@pytest.mark.parametrize(
    "launcher",
    [
        paged_attention.attend, rms_norm.rms_norm, gated.gated, rotary_cache.rotate_and_cache, move_blocks.move_blocks,
        sample.sample,
    ],
)  # fmt: skip
def test_every_launcher_is_of_this_kind(launcher: object) -> None:
    assert inspect.unwrap(launcher) is not launcher  # type: ignore[arg-type]
