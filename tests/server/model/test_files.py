"""Finding a model, and what is said where it is missing or incomplete."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagetide_server.checkpoint.files import resolve
from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

from .sharding import INDEX, shard


def edit_json(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


def without_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def missing_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def own_code(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="very_own", auto_map={"AutoConfig": "own.Own"})
    (folder / "own.py").write_text("raise SystemExit('this code must not run')\n")


def stated(name: str, value: object, problem: str) -> Any:
    """A folder whose config.json says something else."""
    return pytest.param(lambda f: edit_json(f / "config.json", **{name: value}), problem, id=f"{name} is {value}")


FAULTS = [
    pytest.param(lambda f: (f / "config.json").unlink(), "has no config.json", id="no config.json"),
    pytest.param(lambda f: (f / "config.json").write_text("{"), "config.json cannot be read", id="broken config.json"),
    pytest.param(lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object", id="a list as config.json"),
    pytest.param(lambda f: (f / "config.json").write_text("{}"), "names no model_type", id="config.json says nothing"),
    pytest.param(lambda f: edit_json(f / "config.json", model_type="nonesuch"), "nonesuch", id="an unknown kind"),
    pytest.param(lambda f: (f / "model.safetensors").unlink(), "has no weights", id="no weights"),
    pytest.param(pickled, "pytorch_model.bin: convert it", id="pickled weights only"),
    pytest.param(missing_shard, "1 of 3 weight files are missing: model-00002", id="a shard missing"),
    pytest.param(
        without_tensor, "1 tensors are missing in its weights: model.layers.1.mlp.up_proj", id="a tensor missing"
    ),
    pytest.param(cut, "cut short", id="weights cut short"),
    pytest.param(
        lambda f: (f / "model.safetensors").write_bytes(b"no"), "cut short or no safetensors", id="not weights"
    ),
    pytest.param(own_code, "set trust_remote_code", id="code of its own, not trusted"),
    pytest.param(
        lambda f: edit_json(f / "config.json", intermediate_size=32),
        "9 tensors have another size than config.json says",
        id="weights of another size",
    ),
    stated("num_hidden_layers", 2, "9 tensors belong to layers that config.json does not count: model.layers.2."),
    stated("num_hidden_layers", 0, "it has no layers"),
    stated("hidden_size", 63, "not a multiple"),
    stated("hidden_size", "x", "expected int"),
    stated("num_attention_heads", 0, "cannot read its config.json"),
    stated("max_position_embeddings", "a", "expected int"),
    stated("max_position_embeddings", -5, "max_position_embeddings in its config.json must be a whole number above 0"),
    stated("eos_token_id", [[1]], "eos_token_id"),
    stated("architectures", 5, "the architectures in config.json must be a list of names"),
    stated("quantization_config", {"quant_method": "awq"}, "loading its weights failed: Loading an AWQ"),
    pytest.param(
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": [1, "a"]}'),
        "the eos_token_id in generation_config.json must be token ids, not [1, 'a']",
        id="an end token that is text",
    ),
    pytest.param(
        lambda f: (f / INDEX).write_text('{"weight_map": ' + "[" * 100_000), "cannot be read", id="no end of lists"
    ),
    pytest.param(
        lambda f: (f / INDEX).write_text('{"weight_map": {"a": 5}}'), f"{INDEX} must name files, not 5", id="no file"
    ),
    pytest.param(
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 7) + b'{"a":5}'),
        "model.safetensors is no safetensors file",
        id="a header of another kind",
    ),
]


@pytest.mark.parametrize(("spoil", "problem"), FAULTS)
def test_an_incomplete_folder_is_one_clear_error(
    spoil: Callable[[Path], object], problem: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    spoil(folder)
    with pytest.raises(PagetideError) as caught:
        load(EngineConfig(model=str(folder)))
    text = str(caught.value)
    assert problem in text
    assert text.startswith("model: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        pytest.param("", "must name a folder", id="nothing named"),
        pytest.param("/no/such/folder", "no such folder or file", id="a missing path"),
        pytest.param("missing.gguf", "no such folder or file", id="a missing GGUF file"),
        pytest.param("just-a-name", "no such folder or file", id="neither path nor hub id"),
        pytest.param("org/my--model", "no such folder or file", id="two hyphens, which the hub does not allow"),
        pytest.param("org/name.", "no such folder or file", id="a dot at the end"),
        pytest.param("org/" + "n" * 97, "no such folder or file", id="a name too long for the hub"),
        pytest.param("../up/there", "no such folder or file", id="a path upwards is no hub id"),
    ],
)
def test_no_such_model(model: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        resolve(EngineConfig(model=model))


def test_a_file_that_is_no_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(SettingError, match="no GGUF file"):
        resolve(EngineConfig(model=str(path)))


def answered(kind: str) -> Exception:
    """An error as the hub's client makes it of an answer."""
    from huggingface_hub import errors

    # Which HTTP library it has answers of depends on its version.
    response = types.SimpleNamespace(headers={}, request=None)
    made: Exception = getattr(errors, kind)("no\nsecond line", response=response)
    return made


def unreachable() -> Exception:
    from huggingface_hub.errors import LocalEntryNotFoundError

    return LocalEntryNotFoundError("Cannot find the requested files in the disk cache\nsecond line")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(unreachable, "hub cannot be reached", id="no network"),
        pytest.param(lambda: ConnectionResetError("reset"), "hub cannot be reached", id="a torn connection"),
        pytest.param(lambda: answered("RepositoryNotFoundError"), "'org/name': .* no such model on the hub", id="none"),
        pytest.param(
            lambda: answered("GatedRepoError"), "its licence is accepted: do so on its page there, then", id="gated"
        ),
        pytest.param(
            lambda: answered("RevisionNotFoundError"), "revision: 'v2': the hub's org/name has no", id="revision"
        ),
        pytest.param(lambda: answered("HfHubHTTPError"), r"the hub refused it \(no\)", id="an error at the hub"),
        pytest.param(
            lambda: OSError(28, "No space left"), r"hub's cache \(.*No space left\); set HF_HOME", id="a full disk"
        ),
    ],
)
def test_what_goes_wrong_with_the_hub_is_told_in_one_line(
    make: Callable[[], Exception], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def fails(*args: object, **kwargs: object) -> str:
        raise make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(PagetideError, match=problem) as caught:
        resolve(EngineConfig(model="org/name", revision="v2"))
    assert "\n" not in str(caught.value)


def test_a_hub_id_is_fetched_at_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked: list[tuple[object, object]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo, revision))
        assert not any("bin" in pattern for pattern in allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve(EngineConfig(model="org/name-1.5", revision="v2")) == tmp_path
    assert asked == [("org/name-1.5", "v2")]


def test_finding_a_model_imports_no_torch(tiny_model: Callable[[str], Path]) -> None:
    code = (
        "import sys; from pagetide_spec.config import EngineConfig\n"
        "from pagetide_server.checkpoint.files import resolve\n"
        f"resolve(EngineConfig(model={str(tiny_model('llama'))!r})); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
