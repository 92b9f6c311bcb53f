"""Structured answers: what is written has the structure, and nothing else is touched by it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide_server.engine.sampling.compiler import StructureCompiler
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import Structure

from .answers import EOS, EXTRA, SCHEMA, WORD, MakeSequence, is_document, write


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        pytest.param(Structure(kind="json", value=SCHEMA), is_document, id="JSON schema"),
        pytest.param(Structure(kind="json_object"), lambda t: isinstance(json.loads(t), dict), id="any JSON object"),
        pytest.param(Structure(kind="regex", value=r"[0-9]{3}-[a-é]{2,4}"),
                     lambda t: re.fullmatch(r"[0-9]{3}-[a-é]{2,4}", t), id="regular expression"),
        pytest.param(Structure(kind="choice", value=json.dumps([WORD])), lambda t: t == WORD, id="rare characters"),
        pytest.param(Structure(kind="choice", value=json.dumps(["a", "ab", 'say "\\n"\n'])),
                     lambda t: t in ("a", "ab", 'say "\\n"\n'), id="choices that begin alike, quotes and newlines"),
        pytest.param(Structure(kind="grammar", value='?start: NUM "+" start | NUM\nNUM: /[0-9]{1,2}/'),
                     lambda t: re.fullmatch(r"\d{1,2}(\+\d{1,2})*", t), id="Lark grammar"),
        pytest.param(Structure(kind="grammar", value='root ::= "x" ("y" | "z"){1,3}'),
                     lambda t: re.fullmatch("x[yz]{1,3}", t), id="EBNF grammar"),
        pytest.param(Structure(kind="json", value='{"oneOf": [{"type": "integer"}, {"enum": ["é"]}]}'),
                     lambda t: type(json.loads(t)) is int or json.loads(t) == "é", id="oneOf"),
        pytest.param(
            Structure(kind="json", value=f'{{"x-guidance": {{"whitespace_pattern": ""}}, "allOf": [{SCHEMA}]}}'),
            lambda t: json.dumps(json.loads(t), separators=(",", ":"), ensure_ascii=False) == t or "\\" in t,
            id="JSON without white space",
        ),
    ],
)  # fmt: skip
def test_answers_have_the_structure(
    tokenizers: dict[str, Tokenizer],
    compilers: dict[str, StructureCompiler],
    make: MakeSequence,
    family: str,
    wanted: Structure,
    fits: Callable[[str], bool],
) -> None:
    grammar = compilers[family].compile(wanted).result()
    answers = [write(tokenizers[family], grammar, make(seed=i), seed=i) for i in range(5)]
    ended = [answer for answer in answers if answer is not None]
    assert len(ended) >= 3, "most answers did not come to an end"
    for answer in ended:
        assert fits(answer), answer


@pytest.mark.parametrize("text", ["<eos>", "<bos>", "x<eos>y", "a<turn>b"])
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(lambda text: Structure(kind="choice", value=json.dumps([text])), id="a choice"),
        pytest.param(
            lambda text: Structure(kind="json", value=json.dumps({"const": text})), id="a constant of a schema"
        ),
    ],
)
def test_a_text_that_spells_a_special_token_is_written_with_ordinary_ones(
    tokenizers: dict[str, Tokenizer],
    compilers: dict[str, StructureCompiler],
    make: MakeSequence,
    family: str,
    wanted: Callable[[str], Structure],
    text: str,
) -> None:
    structure, tokenizer, sequence = wanted(text), tokenizers[family], make(temperature=0.0)
    written = write(tokenizer, compilers[family].compile(structure).result(), sequence)
    assert written in (text, json.dumps(text))
    assert tokenizer.special_ids.isdisjoint(sequence.tokens[sequence.prompt_len : -1])


@pytest.mark.parametrize("seed", range(4))
def test_an_ignored_end_comes_only_where_nothing_else_may(
    byte_level: Tokenizer, compiler: StructureCompiler, make: MakeSequence, seed: int
) -> None:
    endless, short = (Structure(kind="regex", value=value) for value in ("(ab)+", "(ab){3}"))
    unended = make(seed=seed, ignore_eos=True, structure=endless)
    assert write(byte_level, compiler.compile(endless).result(), unended, seed, most=60) is None
    assert re.fullmatch("(ab)+a?", byte_level.decode(unended.tokens[unended.prompt_len :], skip_special_tokens=False))
    complete = make(seed=seed, ignore_eos=True, structure=short)
    assert write(byte_level, compiler.compile(short).result(), complete, seed) == "ababab"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.text(min_size=1, max_size=6).filter(lambda t: "\x00" not in t), min_size=1, max_size=4))
def test_any_text_can_be_a_choice(
    tokenizers: dict[str, Tokenizer], compilers: dict[str, StructureCompiler], make: MakeSequence, choices: list[str]
) -> None:
    for family in ("byte_level", "gemma_like"):
        grammar = compilers[family].compile(Structure(kind="choice", value=json.dumps(choices))).result()
        assert write(tokenizers[family], grammar, make(temperature=0.0)) in choices


def test_siblings_go_their_own_ways(byte_level: Tokenizer, compiler: StructureCompiler, make: MakeSequence) -> None:
    grammar = compiler.compile(Structure(kind="choice", value='["ab", "cd"]')).result()
    width = byte_level.vocab_size
    sampler = Sampler(width, "cpu")
    rows = [make(index=i, logit_bias={byte_level.encode(first)[0]: 50.0}) for i, first in enumerate("ac")]
    for row in rows:
        row.matcher = grammar.matcher()
    texts = ["", ""]
    for _ in range(2):
        tokens = sampler.sample(torch.zeros(1, width).expand(2, -1), rows).token_ids
        for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            assert row.matcher.accept(token)
            texts[i] += byte_level.token_text(token)
    assert texts == ["ab", "cd"]
    assert all(row.matcher.is_finished() for row in rows)


def test_free_rows_share_a_batch_with_structured_ones(
    byte_level: Tokenizer, compiler: StructureCompiler, make: MakeSequence
) -> None:
    width = byte_level.vocab_size + EXTRA
    logits = torch.zeros(2, width)
    logits[:, width - 1] = 9.0
    rows = [make(temperature=0.0, logprobs=1), make(temperature=0.0)]
    rows[0].matcher = compiler.compile(Structure(kind="choice", value='["z"]')).result().matcher()
    result = Sampler(width, "cpu").sample(logits, rows)
    assert [byte_level.token_text(result.token_ids[0]), result.token_ids[1]] == ["z", width - 1]
    # Log probabilities are the model's own.
    assert result.logprobs[0] is not None
    assert result.logprobs[0].top_ids == [width - 1]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"min_tokens": 50}, id="by min_tokens"),
        pytest.param({"ignore_eos": True, "structure": Structure(kind="regex", value="xy?")}, id="by ignore_eos"),
        pytest.param({"allowed_token_ids": (5,)}, id="by tokens that leave it out"),
        pytest.param({"bad_words_token_ids": ((EOS,),)}, id="by a bad word"),
    ],
)
def test_the_end_of_a_finished_structure_is_not_held_off(
    byte_level: Tokenizer, compiler: StructureCompiler, make: MakeSequence, changes: dict[str, Any]
) -> None:
    sequence = make(temperature=0.0, **changes)
    sequence.matcher = compiler.compile(Structure(kind="regex", value="xy?")).result().matcher()
    x, y = (byte_level.encode(c)[0] for c in "xy")
    assert not sequence.matcher.inner.is_accepting()
    assert sequence.matcher.accept(x)
    assert sequence.matcher.inner.is_accepting()
    assert not sequence.matcher.is_finished()
    assert sequence.matcher.accept(y)
    assert sequence.matcher.is_finished()
    sampler = Sampler(byte_level.vocab_size, "cpu", eos_token_ids=byte_level.eos_token_ids)
    for _ in range(3):
        result = sampler.sample(torch.zeros(1, byte_level.vocab_size), [sequence])
        assert result.token_ids == [EOS]
        assert sequence.matcher.accept(EOS)
        assert sequence.matcher.is_finished()


def test_a_token_out_of_the_structure_is_not_accepted(byte_level: Tokenizer, compiler: StructureCompiler) -> None:
    matcher = compiler.compile(Structure(kind="regex", value="x")).result().matcher()
    assert not matcher.accept(byte_level.encode("q")[0])
    assert matcher.fault is not None
    assert "\n" not in str(matcher.fault)
