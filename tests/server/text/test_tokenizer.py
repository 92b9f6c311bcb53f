import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

FAMILY = st.sampled_from(["byte_level", "gemma_like", "llama2_like"])


def tiny(**settings: Any) -> Tokenizer:
    """Two words, no decoder knowledge needed."""
    backend = Backend(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    return Tokenizer(backend, settings)


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


@given(FAMILY, st.text(max_size=30))
def test_decoding_undoes_encoding(tokenizers: dict[str, Tokenizer], family: str, text: str) -> None:
    tokenizer = tokenizers[family]
    ids = tokenizer.encode(text)
    # The normal form of the Llama 2 family treats a leading ▁ as its own space.
    if "▁" not in text:
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@given(st.lists(st.integers(0, 600), max_size=12), st.booleans())
def test_byte_level_decoding_is_the_librarys_for_any_ids(
    tokenizers: dict[str, Tokenizer], ids: list[int], skip: bool
) -> None:
    tokenizer = tokenizers["byte_level"]
    assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@given(FAMILY, st.text(max_size=30))
def test_token_bytes_add_up_to_the_text(tokenizers: dict[str, Tokenizer], family: str, text: str) -> None:
    tokenizer = tokenizers[family]
    joined = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
    assert joined.removeprefix(b" " if tokenizer.strips_leading_space and text else b"") in (
        text.encode(),
        text.replace("▁", " ").encode(),
    )


def test_every_token_has_a_text_that_json_can_carry(tokenizer: Tokenizer) -> None:
    for token_id in (-1, *range(tokenizer.vocab_size + 10), 2**40):
        text = tokenizer.token_text(token_id)
        assert json.loads(json.dumps(text).encode()) == text
        assert text.encode() == tokenizer.token_bytes(token_id) or text.startswith("bytes:\\x")


def test_a_part_of_a_character_is_shown_as_its_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("𓀀", add_special_tokens=False)[-4:]
    assert [tokenizer.token_text(i) for i in ids] == [f"bytes:\\x{b:02x}" for b in "𓀀".encode()]
    assert b"".join(map(tokenizer.token_bytes, ids)) == "𓀀".encode()


def test_ids_without_a_token_are_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size, 10**9, -5]) == ""
    assert tokenizer.token_bytes(10**9) == b""


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        pytest.param({}, [1], id="nothing is said: nothing is added"),
        pytest.param({"bos_token": "<s>", "add_bos_token": True}, [3, 1], id="begin token"),
        pytest.param({"bos_token": "<s>", "add_bos_token": False}, [1], id="begin token known but not wanted"),
        pytest.param(
            {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
            [3, 1, 4],
            id="begin and end token",
        ),
    ],
)
def test_begin_and_end_tokens(settings: dict[str, Any], ids: list[int]) -> None:
    tokenizer = tiny(**settings)
    assert tokenizer.encode("a") == ids
    assert tokenizer.encode("a", add_special_tokens=False) == [1]
    assert tokenizer.encode_batch(["a", "b"])[0] == ids


def test_tokens_that_only_the_settings_list_are_known() -> None:
    listed = {
        "3": {"content": "<|im_end|>", "special": True, "lstrip": False},
        "4": {"content": "<tool>", "special": False},
    }
    tokenizer = tiny(added_tokens_decoder=listed, eos_token="<|im_end|>")
    assert tokenizer.eos_token_ids == {3}
    assert tokenizer.encode("a<tool><|im_end|>") == [1, 4, 3]
    assert tokenizer.decode([4, 3]) == "<tool>"


def test_an_added_token_is_its_own_text_whatever_the_decoder_makes_of_it() -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("é", normalized=False), AddedToken("  ", normalized=False)])
    tokenizer = Tokenizer(backend, {})
    assert [tokenizer.token_bytes(i) for i in range(3)] == [b"a", "é".encode(), b"  "]


@pytest.mark.parametrize(
    ("decoder", "model", "ids", "text"),
    [
        pytest.param(decoders.WordPiece(), {"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, [1, 2, 3], "playing now",
                     id="word pieces join"),
        pytest.param(decoders.BPEDecoder(), {"[UNK]": 0, "pl": 1, "ay</w>": 2, "now</w>": 3}, [1, 2, 3], "play now",
                     id="word ends become spaces"),
        pytest.param(decoders.Metaspace(), {"[UNK]": 0, "▁play": 1, "ing": 2, "▁now": 3}, [1, 2, 3], "playing now",
                     id="metaspace strips the first"),
        pytest.param(None, {"[UNK]": 0, "play": 1, "now": 2}, [1, 2], "play now", id="no decoder puts spaces"),
    ],
)  # fmt: skip
def test_other_decoders(decoder: Any, model: dict[str, int], ids: list[int], text: str) -> None:
    backend = Backend(models.WordLevel(model, unk_token="[UNK]"))
    if decoder is not None:
        backend.decoder = decoder
    assert Tokenizer(backend, {}).decode(ids).strip() == text


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


def test_bad_words_are_found_with_and_without_a_space_before(byte_level: Tokenizer) -> None:
    found = byte_level.bad_word_ids(["the", " town"])
    assert {byte_level.decode(ids) for ids in found} == {"the", " the", "town", " town"}


def test_a_missing_other_tokenizer_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        Tokenizer.load(EngineConfig(model=str(tmp_path), tokenizer=str(tmp_path / "none")))
    assert caught.value.field == "tokenizer"
