"""No step waits for the device before its tokens are chosen, for a host that waits launches nothing.

Without a GPU the step runs on tensors that have shapes and no content: whatever asks for a content is found, in the
network as well. With one, torch itself raises.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagetide_kernels import dispatch
from pagetide_server.engine.sequence import UNKNOWN_TOKEN, DeviceTokens, Row, Step
from pagetide_server.model import batch as batch_module
from pagetide_server.model.graphs import CudaRecorder
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.runner import Runner
from pagetide_server.model.swapping import use_gpu_ops

pytest.importorskip("triton")

GPU = torch.device("meta")
Load = Callable[[str], LoadedModel]
Toy = types.SimpleNamespace
# What looks at a content: the size of the result depends on it, or the host gets it.
LOOKS = {
    "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim", "bincount",
    "repeat_interleave.Tensor",
}  # fmt: skip


class Waits(Exception):
    """Something has waited for the device."""


class NoWaiting(TorchDispatchMode):
    """Raises where an op looks at a content on the GPU, or moves one between host and GPU."""

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # repeat_interleave.Tensor and .self_Tensor must know the sum of the repeats.
        name = func.overloadpacket.__name__ + ".Tensor" * func._overloadname.endswith("Tensor")
        found = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if any(t.device == GPU for t in found) and (
            name in LOOKS or _is_masked(name, args) or _moves(name, args, kwargs)
        ):
            raise Waits(name)
        return func(*args, **kwargs)


def _is_masked(name: str, args: Sequence[Any]) -> bool:
    """Whether a mask is an index: torch looks for its true places."""
    return name.startswith(("index", "_index_put")) and any(
        t is not None and t.dtype == torch.bool for t in (args[1] if isinstance(args[1], list | tuple) else [])
    )


def _moves(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an op copies between host and GPU."""
    if name not in ("_to_copy", "copy_"):
        return False
    other = args[1].device if name == "copy_" else kwargs.get("device")
    return other is not None and torch.device(other).type != args[0].device.type


@pytest.fixture
def gpu_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's meta device is taken for a GPU. Triton's launchers compute their grids and launch nothing."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
        return [torch.empty(a.shape, dtype=torch.from_numpy(a).dtype, device=device) for a in arrays]

    # A model that other tests have loaded may have layers for the CPU.
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setattr(dispatch, "_choose", lambda device_type, wanted: dispatch.Choice("triton", "a test"))
    monkeypatch.setattr(batch_module, "to_device", to_device)
    for kind in (InterpretedFunction, JITFunction):
        monkeypatch.setattr(kind, "__getitem__", lambda self, grid: lambda *args, **constants: None)


def placed(loaded: LoadedModel) -> LoadedModel:
    """A copy of the model on the GPU of shapes, in the type that its kernels for experts take."""
    network = copy.deepcopy(loaded.network).to(GPU, torch.bfloat16)
    return dataclasses.replace(loaded, network=network, device=GPU, dtype=torch.bfloat16, cache_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda t: t.sum().item(), id="item"),
        pytest.param(lambda t: t.tolist(), id="tolist"),
        pytest.param(lambda t: t.cpu(), id="cpu"),
        pytest.param(lambda t: t.to("cpu"), id="to"),
        pytest.param(lambda t: t[t > 0], id="a mask as index"),
        pytest.param(lambda t: t.nonzero(), id="nonzero"),
        pytest.param(lambda t: bool((t > 0).any()), id="a condition"),
        pytest.param(lambda t: torch.masked_select(t, t > 0), id="masked_select"),
        pytest.param(lambda t: t.repeat_interleave(t.long()), id="repeat_interleave"),
        pytest.param(lambda t: torch.zeros(3).copy_(t), id="a copy to the host"),
        pytest.param(lambda t: t.copy_(torch.zeros(3)), id="a copy from the host"),
    ],
)
def test_a_look_is_found(look: Callable[[torch.Tensor], object], gpu_of_shapes: None) -> None:
    tensor = torch.zeros(3, device=GPU)
    with pytest.raises(Waits), NoWaiting():
        look(tensor)


def test_no_step_waits(tiny_kind: str, loaded_tiny: Load, toy: Toy, gpu_of_shapes: None) -> None:
    check_steps(placed(loaded_tiny(tiny_kind)), toy)


@pytest.mark.parametrize(
    "rope_type",
    [
        pytest.param("dynamic", id="dynamic ones"),
        pytest.param({"full_attention": "dynamic", "other": "linear"}, id="dynamic ones of one kind of layer"),
        pytest.param("longrope", id="longrope"),
        pytest.param({"full_attention": "longrope", "other": "linear"}, id="longrope of one kind of layer"),
    ],
)
def test_frequencies_that_could_change_with_the_batch_do_not(
    rope_type: str | dict[str, str], loaded_tiny: Load, toy: Toy, gpu_of_shapes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = placed(loaded_tiny("llama"))
    rotary = on_gpu.network.model.rotary_emb
    if isinstance(rope_type, dict):
        plain = type(rotary).forward
        monkeypatch.setattr(type(rotary), "forward", lambda self, x, position_ids: plain(
            _of(self, "full_attention"), x, position_ids))  # fmt: skip
    rotary.rope_type = rope_type
    # (There are no factors of "longrope": whoever looks at positions for it does not find them.)
    check_steps(on_gpu, toy)


def _of(rotary: Any, kind: str) -> Any:
    made = copy.copy(rotary)
    made.rope_type = rotary.rope_type[kind]
    return made


def check_steps(on_gpu: LoadedModel, toy: Toy) -> None:
    """Assert that no step of it waits."""
    use_gpu_ops(on_gpu.network)
    runner = Runner(on_gpu, 8, 0, 16)
    decode, newest, chunk = (toy.make_sequence([5] * 20, [i, i + 1]) for i in (0, 2, 4))
    newest.tokens.append(UNKNOWN_TOKEN)
    device_tokens = DeviceTokens(torch.zeros(2, dtype=torch.int64, device=GPU), {newest: 1})
    decodes = [Row(decode, 19, 1, samples=True), Row(newest, 20, 1, samples=True)]
    for step in (Step(decodes), Step([*decodes, Row(chunk, 3, 17, samples=True)]), Step([Row(chunk, 0, 3, False)])):
        with NoWaiting():
            logits = runner.execute(step, device_tokens)
        assert logits.written().shape == (len(step.sampling()), on_gpu.vocab_size)
        assert logits.written().device == GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch tells of waits there")
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded decodes"])
def test_no_step_waits_on_a_gpu(recorded: bool, loaded_tiny: Load, toy: Toy) -> None:
    runner = Runner(loaded_tiny("qwen3"), 8, 0, 16)
    if recorded:
        runner.record(2, 64, CudaRecorder())
    decode, chunk = (toy.make_sequence([5] * 20, [i, i + 1]) for i in (0, 2))
    for repetition in range(2):
        # At first kernels are compiled, and libraries wait for what they set up.
        torch.cuda.set_sync_debug_mode("error" if repetition else "default")
        try:
            runner.execute(Step([Row(chunk, 0, 3, samples=False)], copies=[(0, 5), (2, 6)]))
            runner.execute(Step([Row(decode, 19, 1, samples=True), Row(chunk, 3, 17, samples=True)]))
            runner.execute(Step([Row(decode, 19, 1, samples=True)]))
        finally:
            torch.cuda.set_sync_debug_mode("default")
