"""What the gateway sees in a body without a tokenizer."""

from __future__ import annotations

import json

import pytest

from pagetide_gateway.routing.prompt import BLOCK_BYTES, Density, chain, head_of, read, rewrite

LONG = "word " * 200


def blocks_of(body: dict, salt: str = "", text: str | None = None):
    return read(head_of((text or json.dumps(body)).encode()), salt, None, Density())[0].blocks


def chat(*contents: str, **more) -> dict:
    roles = ["user", "assistant"]
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"model": "m", "messages": messages, **more}


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(chat(LONG), chat(LONG, "an answer", "go on"), id="the next turn of a chat"),
        pytest.param({"prompt": LONG}, {"prompt": LONG + "and more"}, id="a text that goes on"),
        pytest.param({"prompt": list(range(500))}, {"prompt": [*range(500), 7]}, id="token ids that go on"),
        pytest.param(chat(LONG), {**chat(LONG), "temperature": 0.3}, id="other settings"),
        pytest.param(
            chat(LONG), {"messages": [{"content": LONG, "role": "user"}], "model": "m"}, id="another order of fields"
        ),
    ],
)
def test_equal_beginnings_have_equal_blocks(first, second):
    a, b = blocks_of(first), blocks_of(second)
    assert common(a, b) == len(a) > 1


def test_spelling_does_not_matter():
    body = chat(LONG)
    assert blocks_of(body) == blocks_of(body, text=json.dumps(body, indent=3))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(chat("x" + LONG), chat("y" + LONG), id="another first word"),
        pytest.param(chat(LONG), {**chat(LONG), "tools": [{"type": "function"}]}, id="tools stand before"),
        pytest.param({"prompt": "x" + LONG}, {"prompt": "y" + LONG}, id="another text"),
    ],
)
def test_other_beginnings_share_nothing(first, second):
    assert common(blocks_of(first), blocks_of(second)) == 0


def test_salts_keep_caches_apart():
    assert common(blocks_of(chat(LONG), "a"), blocks_of(chat(LONG), "b")) == 0


def test_a_short_prompt_has_nothing_that_could_be_found_again():
    assert blocks_of({"prompt": "a" * (BLOCK_BYTES - 2)}) == ()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        pytest.param({"prompt": [1, 2, 3]}, 3, id="ids are counted"),
        pytest.param({"prompt": "x" * 400}, 100, id="text is estimated"),
        pytest.param({}, 0, id="no prompt at all"),
        pytest.param({"prompt": None}, 1, id="null"),
    ],
)
def test_tokens(body, tokens):
    prompt, _ = read(head_of(json.dumps(body).encode()), "", None, Density())
    assert prompt.tokens == pytest.approx(tokens, abs=0.5)


@pytest.mark.parametrize("body", [{"prompt": {"a": 1}}, {"messages": 3}, {"messages": []}, {"prompt": ["a", "b"]}])
def test_a_prompt_of_any_form_can_be_routed(body):
    assert read(head_of(json.dumps(body).encode()), "", None, Density())[0].tokens >= 0


def test_density_is_learned_from_usage():
    density = Density()
    for _ in range(100):
        density.learn(1000, b'{"usage": {"prompt_tokens": 500, "total_tokens": 700}}')
    assert density.tokens_per_byte == pytest.approx(0.5, rel=0.02)
    density.learn(1000, b"no usage here")
    density.learn(0, b'{"prompt_tokens": 500}')
    assert density.tokens_per_byte == pytest.approx(0.5, rel=0.02)


def test_a_huge_prompt_is_hashed_up_to_a_bound():
    assert len(blocks_of({"prompt": "x" * (8 << 20)})) * BLOCK_BYTES <= 1 << 20


def test_blocks_are_chained():
    a, b = chain(b"x" * 2 * BLOCK_BYTES, b""), chain(b"x" * BLOCK_BYTES, b"")
    assert a[0] == b[0]
    assert a[0] != a[1]


def test_rewriting_leaves_the_rest_as_it_was():
    body = b'{"model": "ns/m", "temperature": 1.50, "big": 12345678901234567890123}'
    assert rewrite(body, {"model": "m"}) == b'{"model":"m","temperature":1.50,"big":12345678901234567890123}'
