"""`pagetide plan`: sizes that agree with the loaded model, and errors that say what to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.memory import bytes_per_token
from pagetide_server.plan import main, parse_size
from pagetide_spec.errors import SettingError

Tiny = Callable[[str], Path]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("80GiB", 80 << 30, id="binary"),
        pytest.param("80Gi", 80 << 30, id="as Kubernetes writes it"),
        pytest.param("24GB", 24 * 10**9, id="decimal"),
        pytest.param("0.5 gib", 1 << 29, id="a fraction, small letters"),
        pytest.param("12345", 12345, id="bytes"),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "80 apples", "0", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SettingError, match="--device-memory"):
        parse_size(text)


def test_agrees_with_the_loaded_model(
    tiny_model: Tiny, loaded_tiny: Callable[[str], LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(tiny_model("qwen3")), "--device-memory=2GiB", "--dtype=float32", "--lengths=100,512", "--json"]
    assert main(argv) == 0
    plan = json.loads(capsys.readouterr().out)
    loaded = loaded_tiny("qwen3")
    weights = sum(p.nbytes for p in loaded.network.parameters())
    assert (plan["weight_bytes"], plan["dtype"], plan["layers"]) == (weights, "float32", 3)
    assert plan["bytes_per_token"] == bytes_per_token(loaded.layers, loaded.dtype)
    held = plan["weight_bytes"] + plan["activation_bytes"] + plan["runtime_bytes"]
    block = 16 * plan["bytes_per_token"]
    assert 0 <= int(2 * 2**30 * 0.9) - held - plan["blocks"] * block < block
    assert plan["concurrency"] == {"100": plan["blocks"] // 7, "512": plan["blocks"] // 32}


def test_the_table_says_that_windows_save_nothing(tiny_model: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny_model("gemma3")), "--device-memory", "4GiB"]) == 0
    out = capsys.readouterr().out
    assert "2 layers have a sliding window; they keep all blocks" in out
    assert "sequences of 512 tokens" in out


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        pytest.param(["/no/such"], "no such folder", id="no model"),
        pytest.param(["TINY", "--device-memory=much"], "--device-memory: 'much'", id="no size"),
        pytest.param(["TINY", "--lengths=1,x"], "--lengths: '1,x'", id="no lengths"),
        pytest.param(["TINY", "--block-size=7"], "--block-size: 7: must be one of", id="a wrong setting"),
        pytest.param(["TINY", "--device-memory=100MiB"], "gpu_memory_utilization: 0.9: ", id="no room"),
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
