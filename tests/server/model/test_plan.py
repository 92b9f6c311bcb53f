"""`pagetide plan`: sizes that agree with the loaded model, and errors that say what to change."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagetide_server.model import memory
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.memory import Memory, bytes_per_token
from pagetide_server.model.requirements import make_plan
from pagetide_server.plan import main, parse_size
from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import SettingError

Tiny = Callable[[str], Path]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("80GiB", 80 << 30, id="binary"),
        pytest.param("80Gi", 80 << 30, id="as Kubernetes writes it"),
        pytest.param("24GB", 24 * 10**9, id="decimal"),
        pytest.param("0.5 gib", 1 << 29, id="a fraction, small letters"),
        pytest.param("2000000000", 2_000_000_000, id="bytes"),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "80 apples", "0", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SettingError, match="--device-memory"):
        parse_size(text)


def test_the_command_line_of_a_server_may_follow(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    others = ["--port=9000", "--max-queue-len=3", "--served-model-name=x", "--log-format=json", "--seed=1"]
    assert plan_of(capsys, str(tiny_model("llama")), *others) == plan_of(capsys, str(tiny_model("llama")))


def test_agrees_with_the_loaded_model(
    tiny_model: Tiny, loaded_tiny: Callable[[str], LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    argv = [str(tiny_model("qwen3")), "--device-memory=900MB", "--dtype=float32", "--lengths=100,512", "--json"]
    assert main(argv) == 0
    plan = json.loads(capsys.readouterr().out)
    loaded = loaded_tiny("qwen3")
    weights = sum(p.nbytes for p in AutoModelForCausalLM.from_pretrained(tiny_model("qwen3")).parameters())
    assert (plan["weight_bytes"], plan["dtype"], plan["layers"]) == (weights, "float32", 3)
    assert plan["bytes_per_token"] == bytes_per_token(loaded.layers, loaded.cache_dtype)
    held = plan["weight_bytes"] + plan["activation_bytes"] + plan["runtime_bytes"]
    block = 16 * plan["bytes_per_token"]
    assert 0 <= int(900e6 * 0.9) - held - plan["blocks"] * block < block
    assert plan["concurrency"] == {"100": plan["blocks"] // 7, "512": plan["blocks"] // 32}


def plan_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_numbers_by_hand(tiny_model: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three layers of 64, queries of 4 heads of 16, one KV head, an inner width of 96, 384 tokens, nothing tied."""
    layer = 64 * 64 + 2 * 64 * 16 + 64 * 64 + 3 * 64 * 96 + 2 * 64
    parameters = 2 * 384 * 64 + 3 * layer + 64
    # A step of 8,192 tokens; logits of 256 sequences, and twice those of 256 scored tokens; two tables of random bits.
    activations = 8192 * (8 * 64 + 3 * 96) * 4 + 3 * 256 * 384 * 4 + 2 * 256 * 384 * 4 + 2 * (2**22 + 384) * 4
    # Recorded decode steps: a token of 256 sequences, and logits in two types.
    activations += 256 * ((8 * 64 + 3 * 96) * 4 + 384 * (4 + 4))
    room = int(900e6 * 0.9) - parameters * 4 - activations - (700 << 20)
    found = plan_of(capsys, str(tiny_model("llama")), "--device-memory=900MB", "--dtype=float32", "--lengths=512,100")
    assert (found["parameters"], found["weight_bytes"]) == (parameters, parameters * 4) == (135_616, 542_464)
    assert (found["bytes_per_token"], found["activation_bytes"]) == (3 * 2 * 16 * 4, activations)
    assert found["blocks"] == room // (16 * 384) == 1971
    # max_num_seqs is 256 on a GPU.
    assert found["concurrency"] == {"512": 1971 // 32, "100": 256}
    assert (found["max_model_len"], found["model_window"]) == (512, 512)


def test_shards_change_nothing(tiny_model: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    network.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    whole, sharded = (plan_of(capsys, str(folder)) for folder in (tiny_model("llama"), tmp_path))
    assert sharded == whole | {"model": str(tmp_path)}


@pytest.mark.parametrize(
    ("settings", "gib"),
    [
        pytest.param({}, 0.83, id="less than all sequences could use"),
        pytest.param({}, 24.0, id="more than all sequences could use"),
        pytest.param({"max_num_seqs": 3, "max_model_len": 100}, 2.0, id="three short sequences"),
        pytest.param({"kv_cache_memory_gib": 0.01}, 2.0, id="as asked"),
        pytest.param({"kv_cache_memory_gib": 1.0, "max_num_seqs": 2}, 2.0, id="as asked, though nobody can use it all"),
        pytest.param({"gpu_memory_utilization": 0.5, "block_size": 32}, 1.6, id="half of the memory, larger blocks"),
    ],
)
def test_the_engine_finds_the_same_blocks(
    settings: dict[str, Any],
    gib: float,
    tiny_model: Tiny,
    loaded_tiny: Callable[[str], LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it measures what the plan estimates."""
    config = EngineConfig(model=str(tiny_model("llama")), dtype="float32", **settings)
    plan = make_plan(config, int(gib * GIB), "gpu")
    measured = Memory(int(gib * GIB), plan.weight_bytes + plan.activation_bytes + plan.runtime_bytes, on_gpu=True)
    monkeypatch.setattr(memory, "gpu_memory", lambda *args: measured)
    on_gpu = dataclasses.replace(loaded_tiny("llama"), device=torch.device("cuda"), max_model_len=plan.model_window)
    assert memory.kv_blocks(config, on_gpu)[0] == plan.blocks > 0


def test_no_more_sequences_than_may_run(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, str(tiny_model("llama")), "--lengths=512", "--max-num-seqs=7", "--kv-cache-memory-gib=1")
    assert plan["blocks"] > 8 * 32
    assert plan["concurrency"] == {"512": 7}


def test_no_more_blocks_than_the_engine_makes(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as the sequences that may run can fill (see `kv_blocks`), however large the device."""
    argv = [str(tiny_model("llama")), "--device-memory=80GiB", "--max-num-seqs=3", "--max-model-len=100"]
    assert plan_of(capsys, *argv)["blocks"] == 3 * 7
    assert plan_of(capsys, *argv, "--kv-cache-memory-gib=0.01")["blocks"] > 3 * 7


@pytest.mark.real_model
def test_numbers_of_gemma_by_hand(gemma_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """18 layers of 640, queries of 4 heads of 256, one KV head, an inner width of 2,048, 262,144 tokens, tied."""
    layer = 640 * 1024 + 2 * 640 * 256 + 1024 * 640 + 3 * 640 * 2048 + 4 * 640 + 2 * 256
    found = plan_of(capsys, str(gemma_gguf), "--dtype=bfloat16", "--device-memory=24GiB", "--lengths=1000,32768")
    assert found["parameters"] == 262_144 * 640 + 18 * layer + 640 == 268_098_176
    assert (found["weight_bytes"], found["bytes_per_token"]) == (536_196_352, 18 * 2 * 256 * 2)
    activations = 8192 * (8 * 640 + 3 * 2048) * 2 + (3 * 256 + 2 * 256) * 262_144 * 4 + 2 * (2**22 + 262_144) * 4
    activations += 256 * ((8 * 640 + 3 * 2048) * 2 + 262_144 * (4 + 2))
    room = int(24 * 2**30 * 0.9) - 536_196_352 - activations - (700 << 20)
    assert found["blocks"] == room // (16 * 18_432)
    assert found["concurrency"] == {"1000": 256, "32768": found["blocks"] // 2048}
    assert (found["layers"], found["windowed_layers"], found["max_model_len"]) == (18, 15, 32_768)


def test_a_window_that_the_cache_cannot_hold_is_told(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny_model("llama")), "--kv-cache-memory-gib=0.0001", "--dtype=float32"]) == 0
    out = capsys.readouterr().out
    assert "window         272 tokens, all that the cache holds of the model's 512" in out
    assert "1 sequence of 272 tokens" in out
    assert "80.00 GiB of a GPU (assumed; see --device-memory)\n" in out
    assert "(usual)" in out


def test_the_table_says_that_windows_save_nothing(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny_model("gemma3")), "--device-memory", "4GiB"]) == 0
    out = capsys.readouterr().out
    assert "4.00 GiB of a GPU\n" in out
    assert "2 layers have a sliding window; they keep all blocks" in out
    assert "sequences of 512 tokens" in out


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        pytest.param(["/no/such"], "no such folder", id="no model"),
        pytest.param(
            ["TINY", "--device-memory=80"],
            "--device-memory: '80': is a number of bytes; did you mean 80GiB?",
            id="no unit",
        ),
        pytest.param(["TINY", "--device-memory=much"], "--device-memory: 'much'", id="no size"),
        pytest.param(["TINY", "--lengths=1,x"], "--lengths: '1,x'", id="no lengths"),
        pytest.param(["TINY", "--lengths=\N{SUPERSCRIPT TWO}"], "--lengths: '\N{SUPERSCRIPT TWO}'", id="no digit"),
        pytest.param(["TINY", "--lengths=" + "1" * 5000], "must be token counts", id="a length without end"),
        pytest.param(["TINY", "--lengths=9,513"], "--lengths: 513: a sequence has at most 512 tokens here", id="long"),
        pytest.param(["TINY", "--device-memory=" + "9" * 400], "must be a size such as", id="a size without end"),
        pytest.param(["TINY", "--block-size=7"], "--block-size: 7: must be one of", id="a wrong setting"),
        pytest.param(
            ["TINY", "--device-memory=100MiB"],
            "--device-memory: '0.0977GiB': is too small: weights 0.000575 GiB, activations 0.059 GiB, the KV cache "
            "0.000732 GiB, the runtime 0.684 GiB; set it to at least 0.83GiB\n",
            id="no room",
        ),
        pytest.param(
            ["TINY", "--device-memory=750MiB"],
            "set it to at least 0.83GiB, or lower --max-num-batched-tokens or --max-num-seqs to save activations\n",
            id="no room beside activations",
        ),
        pytest.param(
            ["TINY", "--device-memory=820MiB", "--dtype=float32"],
            "there is room for 0 tokens; set it to at least 0.93\n",
            id="room on a greater share",
        ),
        pytest.param(
            ["TINY", "--device-memory=2GiB", "--kv-cache-memory-gib=2"],
            "--kv-cache-memory-gib: 2.0: there are 1.26 GiB free beside weights and activations; set it to at most "
            "1.256\n",
            id="a cache larger than the rest",
        ),
        pytest.param(
            ["TINY", "--quantization=int8", "--device=gpu"],
            "quantization: 'int8': is built for the CPU only; set --device to cpu",
            id="8 bits for a GPU",
        ),
        pytest.param(["TINY", "--max-model-len=9999"], "the model allows at most 512", id="a window beyond the model"),
    ],
)
def test_wrong_calls_are_one_line_and_exit_code_2(
    argv: list[str], problem: str, tiny_model: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny_model("qwen3")) if a == "TINY" else a for a in argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert problem in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param([], id="as the engine shares it out"),
        pytest.param(["--kv-cache-memory-gib=0.3"], id="a cache of a stated size"),
        pytest.param(["--max-model-len=100", "--gpu-memory-utilization=0.5"], id="half of the device, a short window"),
    ],
)
def test_the_advised_memory_is_enough(
    device: str, settings: list[str], tiny_model: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(tiny_model("qwen3")), f"--device={device}", *settings]
    assert main([*command, "--device-memory=1MiB"]) == 2
    advised = re.search(r"at least ([\d.]+GiB)", capsys.readouterr().err)
    assert advised
    assert main([*command, f"--device-memory={advised[1]}"]) == 0


def test_a_resource_file_is_for_another_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("kind: InferenceService\n")
    assert main([str(path)]) == 2
    assert "no GGUF file" in (said := capsys.readouterr().err)
    assert "`pagetide up`" in said
