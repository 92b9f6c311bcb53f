"""A tokenizer's files: what is read from them, and what is said where one is missing or wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError


@pytest.fixture
def folder(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> Callable[..., Path]:
    """Writes a model's tokenizer files."""

    def write(**files: Any) -> Path:
        tokenizers["byte_level"]._backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            stem, _, suffix = name.rpartition("_")
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        pytest.param({}, set(), id="nothing names an end token"),
        pytest.param({"tokenizer_config_json": {"eos_token": "<eos>"}}, {2}, id="the tokenizer's own"),
        pytest.param({"config_json": {"eos_token_id": 3}}, {3}, id="the model's configuration"),
        pytest.param(
            {"config_json": {"text_config": {"eos_token_id": [1, 3]}}}, {1, 3}, id="its part for text, of several kinds"
        ),
        pytest.param(
            {"tokenizer_config_json": {"eos_token": "<eos>"}, "generation_config_json": {"eos_token_id": [2, 3]},
             "config_json": {"eos_token_id": 1}},
            {2, 3},
            id="the generation configuration goes before it",
        ),
    ],
)  # fmt: skip
def test_end_tokens(folder: Callable[..., Path], files: dict[str, Any], eos: set[int]) -> None:
    assert Tokenizer.from_folder(folder(**files)).eos_token_ids == eos


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"tokenizer_config_json": {"chat_template": "A"}}, {"default": "A"}, id="in the settings"),
        pytest.param(
            {"tokenizer_config_json": {"chat_template": [{"name": "default", "template": "A"},
                                                         {"name": "tool_use", "template": "B"}]}},
            {"default": "A", "tool_use": "B"},
            id="several, by name",
        ),
        pytest.param({"chat_template_jinja": "C", "tokenizer_config_json": {"chat_template": "A"}}, {"default": "C"},
                     id="a file of its own goes first"),
        pytest.param({"chat_template_json": {"chat_template": "D"}}, {"default": "D"}, id="a JSON file"),
    ],
)  # fmt: skip
def test_chat_templates_are_found(
    folder: Callable[..., Path], files: dict[str, Any], templates: dict[str, str]
) -> None:
    tokenizer = Tokenizer.from_folder(folder(**files))
    assert tokenizer.chat_templates == templates


def test_a_folder_without_a_tokenizer_names_setting_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"tokenizer: .*: has no tokenizer.json; set --tokenizer") as caught:
        Tokenizer.from_folder(tmp_path, "tokenizer")
    assert caught.value.field == "tokenizer"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_broken_file_is_named(folder: Callable[..., Path], name: str) -> None:
    path = folder()
    (path / name).write_text('{"half": ', encoding="utf-8")
    with pytest.raises(SettingError, match=f"model: .*{name}"):
        Tokenizer.from_folder(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("generation_config.json", {"eos_token_id": "x"}, id="an end token that is text"),
        pytest.param("tokenizer_config.json", {"chat_template": 5}, id="a number as template"),
        pytest.param("tokenizer_config.json", {"chat_template": {"a": 5}}, id="a number among templates"),
        pytest.param("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, id="a name without a template"),
        pytest.param("tokenizer_config.json", {"added_tokens_decoder": 5}, id="a number for tokens"),
        pytest.param("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, id="an id that is text"),
        pytest.param("tokenizer_config.json", {"added_tokens_decoder": {"1": {}}}, id="a token without text"),
        pytest.param("tokenizer_config.json", {"eos_token": {"a": 1}}, id="a named token without text"),
        pytest.param("tokenizer_config.json", {"add_bos_token": "x"}, id="text for a bool"),
        pytest.param("special_tokens_map.json", {"eos_token": 5}, id="a number for a token"),
        pytest.param("chat_template.json", {"chat_template": 5}, id="a number as the only template"),
    ],
)
def test_a_wrong_value_is_told_with_folder_and_file(
    folder: Callable[..., Path], name: str, content: dict[str, Any]
) -> None:
    path = folder()
    (path / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        Tokenizer.from_folder(path)
    assert caught.value.value == str(path)
    assert name in caught.value.problem


def test_a_template_that_is_no_utf8_is_told(folder: Callable[..., Path]) -> None:
    path = folder()
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(SettingError, match=r"model: .*: chat_template.jinja cannot be read"):
        Tokenizer.from_folder(path)


def test_older_files_are_converted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")
    (tmp_path / "vocab.json").write_text('{"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("abab") == [3, 3]
    assert tokenizer.decode([3, 1]) == "aba"


def test_text_in_and_out_needs_no_torch(folder: Callable[..., Path]) -> None:
    code = (
        "import sys, pathlib; from pagetide_server.text import chat, detokenizer, tokenizer; "
        "tokenizer.Tokenizer.from_folder(pathlib.Path(sys.argv[1])); "
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder())], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_older_files_that_cannot_be_converted_say_why(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(SettingError, match=r"model: .*: its tokenizer cannot be converted: "):
        Tokenizer.from_folder(tmp_path)


def test_a_missing_other_tokenizer_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        Tokenizer.load(EngineConfig(model=str(tmp_path), tokenizer=str(tmp_path / "none")))
    assert caught.value.field == "tokenizer"
