"""`pagetide plan` for a machine without a GPU: what the engine itself finds there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagetide_server.model import host_memory, memory
from pagetide_server.model.loader import load
from pagetide_server.model.memory import bytes_per_token
from pagetide_server.model.requirements import device_of, make_plan
from pagetide_server.plan import main
from pagetide_spec.config import GIB, EngineConfig

Tiny = Callable[[str], Path]


def plan_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_weights_of_eight_bits_are_counted_as_such(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM

    sizes = {"float32": 4, "float16": 2}
    parts = list(AutoModelForCausalLM.from_pretrained(tiny_model("qwen3")).parameters())
    matrices = [p for p in parts if p.dim() == 2]
    for dtype, size in sizes.items():
        found = plan_of(capsys, str(tiny_model("qwen3")), "--quantization=int8", f"--dtype={dtype}")
        scaled = sum(m.numel() + 4 * m.shape[0] * -(-m.shape[1] // 32) for m in matrices)
        assert found["weight_bytes"] == scaled + size * sum(p.numel() for p in parts if p.dim() == 1)
    assert main([str(tiny_model("qwen3")), "--quantization=int8", "--dtype=float16"]) == 0
    said = capsys.readouterr().out
    assert "parameters, int8 and float16)" in said
    assert "GiB free of a CPU\n" in said
    assert "usual" not in said
    assert "measures" not in said
    assert "GiB of float16, " in said


def test_eight_bits_are_planned_for_the_cpu_that_they_run_on(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.bfloat16).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), quantization="int8")
    plan = make_plan(config, 9 * GIB, device_of(config, None))
    loaded = load(config)
    assert (plan.dtype, loaded.dtype) == ("float32", torch.float32)
    assert (plan.cache_dtype, loaded.cache_dtype) == ("bfloat16", torch.bfloat16)
    assert plan.bytes_per_token == bytes_per_token(loaded.layers, torch.bfloat16) == 3 * 2 * 16 * 2
    monkeypatch.setattr(memory, "available_bytes", lambda: 9 * GIB - plan.weight_bytes)
    assert plan.blocks == memory.kv_blocks(config, loaded)[0] == 64 * 32  # sequences of 512 tokens
    assert plan.runtime_bytes == 0


@pytest.mark.parametrize(
    ("stored", "settings"),
    [
        pytest.param(torch.bfloat16, {}, id="16 bits that layers compute from"),
        pytest.param(torch.float32, {}, id="32 bits"),
        pytest.param(torch.float32, {"dtype": "bfloat16", "max_num_seqs": 2}, id="asked for in 16 bits, few sequences"),
    ],
)
def test_a_plan_for_the_cpu_is_the_engines(
    stored: torch.dtype, settings: dict[str, Any], tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=stored).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), **settings)
    plan = make_plan(config, GIB // 2, "cpu")
    loaded = load(config)
    kept = torch.bfloat16 if settings else stored
    assert (plan.device, plan.runtime_bytes) == ("cpu", 0)
    assert plan.weight_bytes == plan.parameters * kept.itemsize
    assert plan.cache_dtype == str(loaded.cache_dtype).removeprefix("torch.")
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB // 2 - plan.weight_bytes)
    assert plan.blocks == memory.kv_blocks(config, loaded)[0] > 0


def test_without_a_size_a_cpu_has_what_is_free_here(
    tiny_model: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 3 * GIB)
    assert plan_of(capsys, str(tiny_model("llama")), "--device=cpu")["device_bytes"] == 3 * GIB
    assert plan_of(capsys, str(tiny_model("llama")), "--quantization=int8")["device_bytes"] == 3 * GIB
    assert plan_of(capsys, str(tiny_model("llama")))["device_bytes"] == 80 * GIB


def test_what_is_free_may_be_unknown(
    tiny_model: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = host_memory.available_bytes
    monkeypatch.setattr(host_memory, "available_bytes", lambda: measure(tmp_path))  # as where there is no /proc
    for flag in ("--device=cpu", "--quantization=int8"):
        assert main([str(tiny_model("llama")), flag]) == 2
        assert capsys.readouterr().err == (
            "pagetide plan: --device-memory: None: what is free here is unknown; set it\n"
        )
        assert main([str(tiny_model("llama")), flag, "--device-memory=2GiB"]) == 0


def only_the_config(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def half_of_the_shards(folder: Path) -> None:
    next(folder.glob("model-*.safetensors")).unlink()


def one_shard_cut_short(folder: Path) -> None:
    path = next(folder.glob("model-*.safetensors"))
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("lose", [only_the_config, half_of_the_shards, one_shard_cut_short])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_plan_needs_no_weights(
    dtype: torch.dtype, lose: Callable[[Path], None], tiny_model: Tiny, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=dtype)
    network.save_pretrained(tmp_path, max_shard_size="100KB")
    command = [str(tmp_path), "--device=cpu", "--device-memory=2GiB"]
    whole = plan_of(capsys, *command)
    assert whole["weight_dtype"] == str(dtype).removeprefix("torch.")
    lose(tmp_path)
    assert plan_of(capsys, *command) == whole
