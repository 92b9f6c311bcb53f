from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide_server.text.detokenizer import Detokenizer, Piece
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import SamplingParams

FAMILY = st.sampled_from(["byte_level", "gemma_like", "llama2_like"])
IDS = st.lists(st.integers(0, 470), max_size=12)
NOTHING_VISIBLE: list[int] = []


def cut(ids: Sequence[int], places: Sequence[int]) -> list[list[int]]:
    """`ids` cut behind each place."""
    ends = sorted({min(p, len(ids)) for p in places} | {len(ids)})
    return [list(ids[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def run(tokenizer: Tokenizer, prompt: list[int], groups: list[list[int]], **params) -> list[Piece]:
    detokenizer = Detokenizer(tokenizer, prompt, SamplingParams(**params))
    return [detokenizer.push(group, finished=i == len(groups) - 1) for i, group in enumerate(groups)]


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def feed(tokenizer: Tokenizer, text: str, prompt: str = "x", **params) -> list[Piece]:
    """Pieces of `text` given token by token behind a prompt."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    before = tokenizer.encode(prompt, add_special_tokens=False)
    return run(tokenizer, before, [[i] for i in ids], **params)


@given(FAMILY, IDS, st.lists(st.integers(0, 12), max_size=5), st.booleans())
def test_any_ids_in_any_groups_give_the_text_of_the_whole(
    tokenizers: dict[str, Tokenizer], family: str, ids: list[int], places: list[int], skip: bool
) -> None:
    tokenizer = tokenizers[family]
    pieces = run(tokenizer, NOTHING_VISIBLE, cut(ids, places), skip_special_tokens=skip)
    assert text_of(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert sum(piece.tokens_used for piece in pieces) == len(ids)


@given(FAMILY, IDS, st.lists(st.integers(0, 12), max_size=5), st.lists(st.text("ae \ufffd", min_size=1, max_size=3)))
def test_the_text_ends_where_the_first_stop_string_begins_whatever_the_groups(
    tokenizers: dict[str, Tokenizer], family: str, ids: list[int], places: list[int], stops: list[str]
) -> None:
    tokenizer = tokenizers[family]
    whole = tokenizer.decode(ids)
    found = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    wanted = whole[: min(found)[1]] if found else whole
    pieces = run(tokenizer, NOTHING_VISIBLE, cut(ids, places), stop=tuple(stops))
    assert text_of(pieces) == wanted
    # A client that stops reading at any moment has seen no part of a stop string.
    assert all(wanted.startswith(text_of(pieces[:n])) for n in range(len(pieces)))


@given(FAMILY, st.text(max_size=20))
def test_a_character_comes_whole_or_not_yet(tokenizers: dict[str, Tokenizer], family: str, text: str) -> None:
    tokenizer = tokenizers[family]
    pieces = feed(tokenizer, text)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece.text for piece in pieces)
    behind_prompt = tokenizer.strips_leading_space and text
    assert text_of(pieces) == (" " + text if behind_prompt else text)


def test_text_without_stop_strings_is_never_held_back(tokenizer: Tokenizer) -> None:
    text = "The old harbour town"
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("x"), SamplingParams(stop=("\u2603" * 24,)))
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        assert detokenizer.push([token_id]).text == tokenizer.token_text(token_id)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_is_not_echoed(tokenizer: Tokenizer, missing: int) -> None:
    ids = tokenizer.encode("harbour 𓀀", add_special_tokens=False)
    prompt, rest = ids[:-missing], ids[-missing:]
    assert text_of(run(tokenizer, prompt, [[i] for i in rest])) == "𓀀"
    # The answer goes on with something else: nothing of the prompt's half character is shown.
    other = tokenizer.encode(" the", add_special_tokens=False)[-1]
    assert text_of(run(tokenizer, prompt, [[other]])) == " the"


@pytest.mark.parametrize(
    ("family", "prompt", "text"),
    [
        pytest.param("llama2_like", [], "the", id="first word of all: the written space is stripped"),
        pytest.param("llama2_like", [1], "the", id="behind the begin token: stripped too"),
        pytest.param("llama2_like", [300], " the", id="behind a word: kept"),
        pytest.param("gemma_like", [1], " the", id="a family that adds no space strips none"),
        pytest.param("byte_level", [1], " the", id="byte-level strips none"),
    ],
)
def test_leading_space(tokenizers: dict[str, Tokenizer], family: str, prompt: list[int], text: str) -> None:
    tokenizer = tokenizers[family]
    the = tokenizer.encode("x the", add_special_tokens=False)[-1]
    assert text_of(run(tokenizer, prompt, [[the]])) == text


@pytest.mark.parametrize(
    ("params", "text", "used"),
    [
        pytest.param({"stop": ("town",)}, " harbour ", None, id="the text ends before the stop string"),
        pytest.param(
            {"stop": ("town",), "include_stop_str_in_output": True}, " harbour town", None, id="or behind it if asked"
        ),
        pytest.param({"stop": (" ",)}, "", 1, id="the very first character"),
        pytest.param(
            {"stop": (" harbour",), "min_tokens": 100}, " harbour town lies", None, id="not before min_tokens"
        ),
        pytest.param({"stop": ("☃",)}, " harbour town lies", None, id="a stop string that never comes"),
        pytest.param({"stop": ("lies at",)}, " harbour town lies", None, id="a beginning is released at the end"),
    ],
)
def test_stop_strings(byte_level: Tokenizer, params: dict, text: str, used: int | None) -> None:
    pieces = feed(byte_level, " harbour town lies", **params)
    assert text_of(pieces) == text
    if used is not None:
        assert sum(piece.tokens_used for piece in pieces) == used


def test_a_piece_says_which_stop_string_and_how_many_tokens_it_took(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a b c d", add_special_tokens=False)
    detokenizer = Detokenizer(byte_level, [], SamplingParams(stop=("z", "c")))
    stopped = detokenizer.push(ids)
    assert stopped.stopped == "c"
    assert byte_level.decode(ids[: stopped.tokens_used]).endswith("c")
    assert detokenizer.push(ids) == Piece("", 0)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        pytest.param({}, "a", id="a stop token is no text"),
        pytest.param({"skip_special_tokens": False}, "a", id="not even where special tokens are shown"),
        pytest.param({"include_stop_str_in_output": True}, "a", id="an included end token is special and skipped"),
        pytest.param(
            {"include_stop_str_in_output": True, "skip_special_tokens": False}, "a<eos>", id="included and shown"
        ),
    ],
)
def test_stop_tokens(tokenizer: Tokenizer, params: dict, text: str) -> None:
    a, eos = tokenizer.encode("xa", add_special_tokens=False)[-1], min(tokenizer.eos_token_ids)
    detokenizer = Detokenizer(tokenizer, [a], SamplingParams(**params))
    assert detokenizer.push([a, eos], finished=True, stop_token_id=eos) == Piece(text, 2)


def test_an_answer_that_ends_inside_a_character_ends_with_one_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é 𓀀", add_special_tokens=False)
    pieces = run(tokenizer, ids[:1], [[i] for i in ids[1:-1]])
    assert text_of(pieces).endswith(" \ufffd")


def test_a_long_answer_costs_no_more_a_token_than_a_short_one(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level, [], SamplingParams(stop=("aaaaaaaab",)))
    a = byte_level.encode("a", add_special_tokens=False)
    fed = []
    feed = detokenizer._finder.feed
    detokenizer._finder.feed = lambda text, may_stop: fed.append(text) or feed(text, may_stop)
    released = 0
    for _ in range(20_000):
        released += len(detokenizer.push(a).text)
        assert len(detokenizer._held) <= 8
    assert released == 20_000 - 8
    assert fed == ["a"] * 20_000
