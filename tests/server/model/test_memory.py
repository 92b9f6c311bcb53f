"""How many blocks there is room for, and what is said where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from pagetide_server.model import memory
from pagetide_server.model.limits import batch_limits
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.memory import (
    Memory,
    _more_of_the_gpu,
    bytes_per_token,
    check_room,
    kv_blocks,
    room,
    swap_blocks,
)
from pagetide_server.model.network import Layer
from pagetide_server.model.profile import estimated_activations
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

GIB = 1 << 30
GPU = Memory(10 * GIB, 0, on_gpu=True)
Load = Callable[[str], LoadedModel]


def test_a_token_costs_keys_and_values_of_every_layer() -> None:
    layers = [Layer(2, 64, 64, None, 4, 0.125, None), Layer(1, 128, 96, 512, 4, 0.125, None)]
    assert bytes_per_token(layers, torch.float32) == (2 * 128 + 224) * 4
    assert bytes_per_token(layers, torch.bfloat16) == (2 * 128 + 224) * 2


# The tiny Llama: 3 layers of 1 head of 16: 384 bytes a token, 6,144 a block of 16; its window is 512 tokens.
@pytest.mark.parametrize(
    ("settings", "available", "blocks"),
    [
        pytest.param({"kv_cache_memory_gib": 100 * 6144 / GIB}, GIB, 100, id="as asked"),
        pytest.param({"kv_cache_memory_gib": 100 * 6144 / GIB, "block_size": 32}, GIB, 50, id="larger blocks, fewer"),
        pytest.param({}, 1000 * 6144, 400, id="four tenths of what is available"),
        pytest.param({"max_num_seqs": 1}, 64 * GIB, 32, id="no more than one sequence of the whole window"),
        pytest.param({}, 64 * GIB, 64 * 32, id="no more than 64 sequences of the whole window"),
        pytest.param({"max_num_seqs": 2, "max_model_len": 100}, 64 * GIB, 2 * 32, id="no more than two such sequences"),
        pytest.param({"kv_cache_memory_gib": 3 * 6144 / GIB}, GIB, 3, id="less than the window, if asked for"),
    ],
)
def test_blocks_on_a_cpu(
    settings: dict[str, object], available: int, blocks: int, loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: available)
    monkeypatch.setattr(memory, "estimated_activations", lambda *args, **options: 0)
    assert kv_blocks(EngineConfig(**settings), loaded_tiny("llama"))[0] == blocks


def test_cache_and_swap_space_of_a_cpu_leave_room_for_activations(
    loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step is large for the memory, four tenths of this would be too much."""
    loaded, config = loaded_tiny("llama"), EngineConfig(max_num_batched_tokens=100_000, max_num_seqs=4096)
    limits = batch_limits(config, loaded.device, loaded.max_model_len)
    held = estimated_activations(loaded.hf_config, loaded.vocab_size, limits, loaded.dtype, on_gpu=False)
    available = held + 100 * 6144
    monkeypatch.setattr(memory, "available_bytes", lambda: available)
    blocks, swap = kv_blocks(config, loaded)
    assert blocks == 100 < int(available * 0.4) // 6144
    assert swap == 0


@pytest.mark.parametrize(
    ("settings", "available", "field", "problem"),
    [
        pytest.param(
            {"kv_cache_memory_gib": 0.000001},
            GIB,
            "kv_cache_memory_gib",
            "holds not one block; set it to at least 0.001, for a request of 512 tokens",
            id="not one block",
        ),
        pytest.param(
            {"kv_cache_memory_gib": 3 * 6144 / GIB, "max_model_len": 400},
            GIB,
            "kv_cache_memory_gib",
            "400 tokens need 0.001 GiB of KV cache, but there is room for 48 tokens; set it to at least 0.001, "
            "or max_model_len to at most 48",
            id="not the length that was asked for",
        ),
        pytest.param(
            {"kv_cache_memory_gib": 3.0},
            GIB,
            "kv_cache_memory_gib",
            "there are 0.962 GiB free beside activations; set it to at most 0.962",
            id="more than there is",
        ),
        pytest.param(
            {},
            GIB // 1024,
            "kv_cache_memory_gib",
            "512 tokens need 0.001 GiB of KV cache, but there is room for 0 tokens; activations leave 0 of 0.000977 "
            "GiB; lower max_num_batched_tokens or max_num_seqs to save activations, or give it more memory",
            id="hardly any memory, nothing asked for",
        ),
        pytest.param(
            {"kv_cache_memory_gib": 1.0},
            GIB // 1024,
            "kv_cache_memory_gib",
            "0 GiB free beside activations; lower max_num_batched_tokens or max_num_seqs to save activations, or take",
            id="no memory beside activations",
        ),
    ],
)
def test_no_room_says_what_to_change(
    settings: dict[str, object],
    available: int,
    field: str,
    problem: str,
    loaded_tiny: Load,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: available)
    with pytest.raises(SettingError) as caught:
        kv_blocks(EngineConfig(**settings), loaded_tiny("llama"))
    assert caught.value.field == field
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("settings", "memory", "window", "found"),
    [
        pytest.param({}, Memory(5 * GIB, GIB, on_gpu=False), 1 * GIB, 2 * GIB, id="CPU: a part of what is free"),
        pytest.param({}, Memory(64 * GIB, GIB, on_gpu=False), 1 * GIB, 4 * GIB, id="CPU: no more than nobody asks for"),
        pytest.param({}, Memory(64 * GIB, GIB, on_gpu=False), 6 * GIB, 6 * GIB, id="CPU: one window in any case"),
        pytest.param({}, Memory(10 * GIB, GIB, on_gpu=False), 6 * GIB, 4 * GIB, id="CPU: but not beyond the part"),
        pytest.param({}, Memory(5 * GIB, 4 * GIB, on_gpu=False), 1 * GIB, GIB, id="CPU: what activations leave"),
        pytest.param({}, Memory(5 * GIB, 6 * GIB, on_gpu=False), 1 * GIB, 0, id="CPU: activations leave nothing"),
        pytest.param({}, Memory(80 * GIB, 20 * GIB, on_gpu=True), GIB, 52 * GIB, id="GPU: the share less what is held"),
        pytest.param({}, Memory(10 * GIB, 20 * GIB, on_gpu=True), GIB, -11 * GIB, id="GPU: not even room for the rest"),
        pytest.param({"kv_cache_memory_gib": 60.0}, Memory(80 * GIB, 20 * GIB, on_gpu=True), GIB, 60 * GIB,
                     id="asked for, on a GPU: all but what is held"),
        pytest.param({"kv_cache_memory_gib": 4.0}, Memory(5 * GIB, GIB, on_gpu=False), GIB, 4 * GIB,
                     id="asked for, on a CPU: all but activations"),
    ],
)  # fmt: skip
def test_room(settings: dict[str, float], memory: Memory, window: int, found: int) -> None:
    assert room(EngineConfig(**settings), memory, window) == found


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        pytest.param(Memory(80 * GIB, 20 * GIB, on_gpu=True), "60 GiB free beside weights and activations; .* 60$",
                     id="a GPU"),
        pytest.param(Memory(66 * GIB, 2 * GIB, on_gpu=False), "64 GiB free beside activations; .* 64$", id="a CPU"),
        pytest.param(Memory(10 * GIB, 20 * GIB, on_gpu=True), "0 GiB free .*; lower .*, or take a device with more",
                     id="no room"),
    ],
)  # fmt: skip
def test_more_than_activations_leave_is_refused(memory: Memory, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        room(EngineConfig(kv_cache_memory_gib=70.0), memory, GIB)


def test_cache_and_swap_space_share_a_cpus_memory(loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB)
    config, loaded = EngineConfig(kv_cache_memory_gib=0.75), loaded_tiny("llama")
    blocks, swap = kv_blocks(config, loaded)
    assert blocks == 0.75 * GIB // 6144
    limits = batch_limits(config, loaded.device, loaded.max_model_len)
    held = estimated_activations(loaded.hf_config, loaded.vocab_size, limits, loaded.dtype, on_gpu=False)
    assert swap == int((GIB - held - blocks * 6144) * 0.2) // 6144


def test_following_the_advice_gives_room(loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB)
    with pytest.raises(SettingError, match=r"at least 0\.001"):
        kv_blocks(EngineConfig(kv_cache_memory_gib=3 * 6144 / GIB, max_model_len=400), loaded_tiny("llama"))
    assert kv_blocks(EngineConfig(kv_cache_memory_gib=0.001, max_model_len=400), loaded_tiny("llama"))[0] >= 25


@pytest.mark.parametrize(
    ("settings", "device", "tokens"),
    [
        pytest.param({}, "cpu", 2048, id="a CPU"),
        pytest.param({}, "cuda", 8192, id="a GPU"),
        pytest.param({"enable_chunked_prefill": False}, "cuda", 32768, id="whole prompts of the window"),
        pytest.param({"max_num_batched_tokens": 512}, "cuda", 512, id="as asked"),
    ],
)
def test_tokens_of_a_step(settings: dict[str, object], device: str, tokens: int) -> None:
    limits = batch_limits(EngineConfig(**settings), torch.device(device), 32768)
    assert limits.max_num_batched_tokens == tokens


def test_no_room_on_a_gpu_names_its_share() -> None:
    config = EngineConfig(max_model_len=4096)
    with pytest.raises(SettingError) as caught:
        check_room(config, blocks=100, block_bytes=1 << 20, max_model_len=4096, memory=GPU)
    assert caught.value.field == "gpu_memory_utilization"
    # 156 MiB are missing of 10 GiB.
    assert caught.value.problem == (
        "4096 tokens need 0.25 GiB of KV cache, but there is room for 1600 tokens; set it to at least 0.92, "
        "or max_model_len to at most 1600"
    )


@pytest.mark.parametrize(
    ("free", "advised"),
    [
        pytest.param(10 * GIB, "at least 0.5, for a request of 8192 tokens", id="the model's context"),
        pytest.param(GIB // 4, "at least 0.125, for a request of 2048 tokens", id="what has room"),
    ],
)
def test_a_cache_without_a_block_is_advised_to_be_of_use(free: int, advised: str) -> None:
    with pytest.raises(SettingError, match=advised):
        check_room(EngineConfig(kv_cache_memory_gib=0.0001), 0, 1 << 20, 8192, Memory(free, 0, on_gpu=False))


@pytest.mark.parametrize("missing", [13 << 20, 27 << 20, 41 << 20, 77 << 20])
def test_the_advised_gpu_is_large_enough(missing: int) -> None:
    device = 700 << 20
    said = re.search(r"at least ([\d.]+) GiB", _more_of_the_gpu(1.0, missing, device))
    assert said
    assert float(said[1]) * GIB >= device + missing


def test_no_room_on_any_share_of_a_gpu_says_how_large_it_must_be() -> None:
    with pytest.raises(SettingError) as caught:
        check_room(EngineConfig(), blocks=-3000, block_bytes=1 << 20, max_model_len=4096, memory=GPU)
    # 128 blocks for 2,048 tokens and 3,000 that the rest lacks, beside 9 GiB.
    assert caught.value.problem == (
        "2048 tokens need 0.125 GiB of KV cache, but there is room for 0 tokens; set it to 1 on a GPU of at least "
        "12.1 GiB, or lower max_num_batched_tokens or max_num_seqs to save activations"
    )


@pytest.mark.parametrize(
    ("asked", "available", "on_gpu", "blocks"),
    [
        pytest.param(4.0, 100 * GIB, True, 4096, id="as asked beside a GPU"),
        pytest.param(4.0, 100 * GIB, False, 4096, id="as asked on a CPU with much memory"),
        pytest.param(4.0, 10 * GIB, False, 2048, id="a fifth of a CPU's memory at most"),
        pytest.param(0.0, 10 * GIB, False, 0, id="none"),
    ],
)
def test_swap_blocks(asked: float, available: int, on_gpu: bool, blocks: int) -> None:
    assert swap_blocks(EngineConfig(swap_space_gib=asked), 1 << 20, available, on_gpu) == blocks


def test_pinned_swap_space_beyond_the_host_is_refused() -> None:
    with pytest.raises(SettingError, match=r"swap_space_gib: 8\.0: .*at most 2\.0"):
        swap_blocks(EngineConfig(swap_space_gib=8.0), 1 << 20, 4 * GIB, on_gpu=True)
