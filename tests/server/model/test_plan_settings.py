"""Which settings change a figure of `pagetide plan`: those that its help lists, and no others."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetide_server.checkpoint import hub
from pagetide_server.plan import SHOWN, main
from pagetide_spec.config import EngineConfig, type_of
from pagetide_spec.flags import flag_of
from pagetide_spec.setting import setting_of

COMMAND = ["org/name", "--device-memory=2GiB"]
OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "very_own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
CLASSES = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
# A value of each that changes a figure.
CHANGING = {
    "revision": "deeper",
    "dtype": "bfloat16",
    "trust_remote_code": "true",
    "max_model_len": "100",
    "quantization": "int8",
    "block_size": "32",
    "gpu_memory_utilization": "0.95",
    "kv_cache_memory_gib": "0.01",
    "max_num_seqs": "3",
    "max_num_batched_tokens": "64",
    "enable_chunked_prefill": "false",
    "enforce_eager": "true",
}


def another_value(field: dataclasses.Field[object]) -> str | None:
    """A value of a setting that is not its default; None where there is none."""
    (base, choices, _), setting = type_of(field), setting_of(field)
    if base is bool:
        return str(not field.default)
    if choices or base is str:
        return next((str(c) for c in choices or ("x",) if c != field.default), None)
    number = base(field.default or setting.low or 0) + 1  # type: ignore[call-overload]
    return str(number) if setting.high is None or number <= setting.high else None


def settings_of_others() -> list[tuple[str, str]]:
    """The settings that the help leaves out, each with a value."""
    values = {f.name: another_value(f) for f in dataclasses.fields(EngineConfig) if f.name not in ("model", *SHOWN)}
    return [(name, value) for name, value in values.items() if value is not None]


@pytest.fixture(autouse=True)
def a_hub(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub with one model of three revisions; its window is longer than a step."""
    stated = json.loads((tiny_model("llama") / "config.json").read_text()) | {"max_position_embeddings": 32768}
    revisions = {
        "main": {},
        "deeper": {"num_hidden_layers": 5},
        "own": {"model_type": "very_own", "architectures": ["OwnForCausalLM"], "auto_map": CLASSES},
    }
    for revision, changes in revisions.items():
        (tmp_path / revision).mkdir()
        (tmp_path / revision / "config.json").write_text(json.dumps(stated | changes))
        (tmp_path / revision / "own.py").write_text(OWN_CODE)
    monkeypatch.setattr(hub, "fetch", lambda config, patterns, progress: tmp_path / (config.revision or "main"))


def test_the_help_has_those_that_change_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    flags = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    own = {"--device", "--device-memory", "--lengths", "--json"}
    assert flags == own | {flag_of(name) for name in CHANGING}


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("name", SHOWN)
def test_each_of_the_help_changes_the_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*COMMAND, "--revision=own"] if name == "trust_remote_code" else COMMAND
    is_planned = main(command) == 0
    before = capsys.readouterr().out
    assert main([*command, f"{flag_of(name)}={CHANGING[name]}"]) == 0
    assert capsys.readouterr().out != before
    assert is_planned == (name != "trust_remote_code")


@pytest.mark.parametrize(("name", "value"), settings_of_others())
def test_no_other_changes_it(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == main([*COMMAND, f"{flag_of(name)}={value}"]) == 0
    plans = capsys.readouterr().out
    half = len(plans) // 2
    assert plans[:half] == plans[half:]
