"""Loading what was found: its weights, whether they fit, and which kernels run it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

from .sharding import shard


def test_sharded_weights_load(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    shard(folder)
    stages: list[tuple[str, float]] = []
    sharded = load(EngineConfig(model=str(folder)), lambda stage, part: stages.append((stage, part)))
    whole = load(EngineConfig(model=str(tiny_model("llama"))))
    mine, theirs = sharded.network.state_dict(), whole.network.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    parts = [part for stage, part in stages if stage == "loading weights"]
    assert len(parts) > 10
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_a_served_model_stands_no_harm_when_its_file_changes(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "model"
    shutil.copytree(tiny_model("qwen3"), folder)
    loaded = load(EngineConfig(model=str(folder)))
    before = {k: v.clone() for k, v in loaded.network.state_dict().items()}
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 60_000)
    assert all(torch.equal(v, before[k]) for k, v in loaded.network.state_dict().items())


def test_quantized_weights_are_refused_if_none_are_wanted(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(stated))
    with pytest.raises(SettingError, match=r"quantization: 'none': the model's weights are quantized \(gptq\)"):
        load(EngineConfig(model=str(folder), quantization="none"))


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with half a MiB; the tiny Llama's weights take 542,464 bytes in float32."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 19, 1 << 20))


@pytest.mark.usefixtures("small_gpu")
def test_weights_that_are_larger_than_the_gpu_are_refused_before_they_are_read(
    tiny_model: Callable[[str], Path],
) -> None:
    with pytest.raises(SettingError, match=r"model: .* GiB in float32, the GPU has .* GiB free; .*`pagetide plan`"):
        load(EngineConfig(model=str(tiny_model("llama")), dtype="float32"))


def test_weights_that_do_not_fit_when_they_move_are_told_in_one_line(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(SettingError, match="do not fit into the GPU's memory; set dtype to a smaller type") as caught:
        load(EngineConfig(model=str(tiny_model("llama"))))
    assert "\n" not in str(caught.value)


def test_the_choice_of_kernels_is_logged_and_told(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")
    with caplog.at_level("INFO", "pagetide_server"):
        loaded = load(EngineConfig(model=str(tiny_model("llama"))))
    assert loaded.attention_name == "paged-torch"
    assert caplog.messages == ["kernels on cpu: torch (PAGETIDE_KERNELS asks for it)"]


def test_a_wrong_choice_of_kernels_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", "cuda")
    with pytest.raises(SettingError, match=r"^PAGETIDE_KERNELS: 'cuda': must be one of auto, triton, cpp, torch$"):
        load(EngineConfig(model="/nowhere"))
