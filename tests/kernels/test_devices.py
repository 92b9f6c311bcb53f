"""Every launcher runs with the GPU of its tensors as the current one."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from pagetide_kernels.gpu.devices import on_its_device

FOLDER = Path(inspect.getfile(on_its_device)).parent
ON_ITS_DEVICE = on_its_device.__name__
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
    launcher = on_its_device(lambda first, second: (list(seen), second))
    assert launcher(argument, 5) == (entered, 5)
    seen.clear()
    assert launcher(second=5, first=argument) == (entered, 5)


def test_every_launcher_is_of_this_kind() -> None:
    found = set()
    for path in FOLDER.glob("*.py"):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef) and re.search(r"\b_\w+_kernel\[", ast.unparse(function)):
                found.add(f"{path.stem}.{function.name}")
                assert ON_ITS_DEVICE in map(ast.unparse, function.decorator_list), (path.name, function.name)
    assert {"paged_attention.attend", "sample.sample"} <= found
