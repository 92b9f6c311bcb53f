"""Text to token ids and back, for every family of tokenizers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from pagetide_server.text.tokenizer import Tokenizer

FAMILY = st.sampled_from(["byte_level", "gemma_like", "llama2_like"])


def tiny(**settings: Any) -> Tokenizer:
    """Two words, no decoder knowledge needed."""
    backend = Backend(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    return Tokenizer(backend, settings)


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


def test_bad_words_are_found_with_and_without_a_space_before(byte_level: Tokenizer) -> None:
    found = byte_level.bad_word_ids(["the", " town"])
    assert {byte_level.decode(ids) for ids in found} == {"the", " the", "town", " town"}
