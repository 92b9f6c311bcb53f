import concurrent.futures
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide_server.engine import isolation
from pagetide_server.engine.faults import Busy, RequestFault
from pagetide_server.engine.sampling import compiler as structure
from pagetide_server.engine.sampling.compiler import Compilation, Grammar, StructureCompiler, StructureError
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import Structure

MakeSequence = Callable[..., Sequence]
EOS = 2
# Logits may be wider than the vocabulary: models pad it.
EXTRA = 37

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"color": {"enum": ["red", "grün"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["color", "count"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="session")
def compilers(tokenizers: dict[str, Tokenizer]) -> Iterator[dict[str, StructureCompiler]]:
    made = {name: StructureCompiler(tokenizer) for name, tokenizer in tokenizers.items()}
    yield made
    for compiler in made.values():
        compiler.close()


@pytest.fixture(params=["byte_level", "gemma_like", "llama2_like"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def compiler(compilers: dict[str, StructureCompiler]) -> StructureCompiler:
    return compilers["byte_level"]


def write(tokenizer: Tokenizer, grammar: Grammar, sequence: Sequence, seed: int = 0, most: int = 400) -> str | None:
    """The text of an answer of random logits; None if it did not end within `most` tokens."""
    width = tokenizer.vocab_size + EXTRA
    sampler = Sampler(width, "cpu", eos_token_ids=tokenizer.eos_token_ids)
    random = torch.Generator().manual_seed(seed)
    sequence.matcher = grammar.matcher()
    closing = [tokenizer.encode(f"x{c}")[-1] for c in '"}]0']
    for _ in range(most):
        logits = torch.randn(1, width, generator=random)
        # Ends are made likely, so that answers of open length come to them.
        logits[0, [EOS, *closing]] += 4
        result = sampler.sample(logits, [sequence])
        assert result.errors == {}
        token = result.token_ids[0]
        assert sequence.matcher.accept(token)
        sequence.tokens.append(token)
        if token in tokenizer.eos_token_ids:
            return tokenizer.decode_bytes(sequence.tokens[sequence.prompt_len :]).decode()
    return None


def is_document(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"color", "count"} and value["color"] in ("red", "grün") and value["count"] in range(10)


WORD = "𓀀𓃰 ꙮ𝔘é"


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


@pytest.mark.parametrize(
    ("kind", "value", "changes", "words"),
    [
        pytest.param("regex", "x", {"bad_words": "x"}, "no token may follow", id="a bad word is all that fits"),
        pytest.param("regex", "x", {"allowed": "y"}, "no token may follow", id="what fits is not allowed"),
        pytest.param("regex", "a{1000000}", {}, "structure: ", id="a text beyond the library's limits"),
        pytest.param("grammar", 'root ::= "a" root', {}, "structure: ", id="a grammar without an end"),
    ],
)
def test_a_structure_that_cannot_be_followed_is_its_requests_fault_alone(
    byte_level: Tokenizer,
    compiler: StructureCompiler,
    make: MakeSequence,
    kind: str,
    value: str,
    changes: dict[str, str],
    words: str,
) -> None:
    ids = {name: byte_level.encode(text)[0] for name, text in changes.items()}
    stuck = make(
        bad_words_token_ids=((ids["bad_words"],),) if "bad_words" in ids else (),
        allowed_token_ids=(ids["allowed"],) if "allowed" in ids else (),
        temperature=0.0,
    )
    grammar = compiler.compile(Structure(kind=kind, value=value)).result()
    assert isolation.begin(stuck, grammar) is None
    result = Sampler(byte_level.vocab_size, "cpu").sample(torch.zeros(2, byte_level.vocab_size), [stuck, make()])
    fault = result.errors.get(0) or isolation.advance(stuck, result.token_ids[0])
    assert isinstance(fault, RequestFault)
    assert words in str(fault)
    assert 1 not in result.errors


def nested(levels: int) -> str:
    return '{"type":"object","properties":{"a":' * levels + '{"type":"integer"}' + "}}" * levels


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        pytest.param("json", nested(500), "json: ", id="a schema nested 500 deep"),
        pytest.param("json", nested(3000), "json: ", id="a schema nested 3000 deep"),
        pytest.param("json", "[" * 100_000, "json: ", id="brackets without end"),
        pytest.param("json", '{"type": "frob"}', "frob", id="a type that does not exist"),
        pytest.param("json", '{"$ref": "http://example.com/x"}', "example.com", id="a reference to the network"),
        pytest.param("json", '{"uniqueItems": true}', "uniqueItems", id="a keyword that cannot be followed is named"),
        pytest.param("json", "false", "json: ", id="nothing fits"),
        pytest.param("json", '{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}', "no answer",
                     id="a schema that only refers to itself"),
        pytest.param("json", "not json", "json: ", id="no JSON"),
        pytest.param("regex", "(", "unclosed group", id="a regex that is none"),
        pytest.param("regex", "(?=x)a", "look-around", id="look-ahead"),
        pytest.param("regex", "(" * 20_000, "regex: ", id="a regex nested without end"),
        pytest.param("regex", "a" * 40_000, "at most 32768", id="a regex of great length"),
        pytest.param("choice", "[]", "list of texts", id="no choices"),
        pytest.param("choice", '["a", 5]', "list of texts", id="a number among the choices"),
        pytest.param("choice", '["\\ud800"]', "choice: ", id="half a surrogate pair"),
        pytest.param("grammar", "start: missing", "missing", id="a rule that does not exist"),
        pytest.param("grammar", "start: start", "no answer", id="a rule that only repeats itself"),
        pytest.param("grammar", "garbage %%%", "grammar: ", id="garbage"),
        pytest.param("grammar", "root ::= (", "grammar: ", id="garbage in EBNF"),
        pytest.param("grammar", "start: " + "(" * 20_000, "grammar: ", id="a grammar nested without end"),
        pytest.param("grammar", "start: " + '"a" ' * 100_000, "at most 262144", id="a grammar of great length"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_in_one_line_and_in_time(
    compiler: StructureCompiler, kind: str, value: str, words: str
) -> None:
    started = time.monotonic()
    with pytest.raises(StructureError, match=re.escape(words)) as caught:
        compiler.compile(Structure(kind=kind, value=value)).result()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.monotonic() - started < 10
    # A bad structure leaves nothing behind.
    assert compiler.compile(Structure(kind="regex", value="ok")).result().matcher().fault is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param("json", nested(60), id="a schema nested 60 deep"),
        pytest.param("json", '{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},'
                     '"$ref":"#/$defs/n"}', id="a schema that refers to itself"),
        pytest.param("json", '{"type": "array", "items": {"$ref": "#"}}', id="a tree"),
        pytest.param("choice", json.dumps([f"number {i}" for i in range(4096)]), id="thousands of choices"),
        pytest.param("json", json.dumps({"properties": {f"key{i}": {"type": "null"} for i in range(2000)}}),
                     id="thousands of properties"),
        pytest.param("regex", "((a{1,1000}){1,1000}){1,1000}", id="repetitions of repetitions"),
    ],
)  # fmt: skip
def test_large_structures_are_followed(
    byte_level: Tokenizer, compiler: StructureCompiler, make: MakeSequence, kind: str, value: str
) -> None:
    grammar = compiler.compile(Structure(kind=kind, value=value)).result()
    write(byte_level, grammar, make(seed=1), most=40)


class Blocked:
    """A tokenizer that lets nobody use it until told."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner, self.open, self.asked = inner, threading.Event(), 0
        self.vocab_size, self.special_ids, self.eos_token_ids = inner.vocab_size, inner.special_ids, inner.eos_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._inner.encode(text, add_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        assert self.open.wait(30)
        self.asked += 1
        return self._inner.token_bytes(token_id)


def test_compiling_holds_nobody_up_and_is_done_once(byte_level: Tokenizer) -> None:
    tokenizer = Blocked(byte_level)
    compiler = StructureCompiler(tokenizer)
    same = [compiler.compile(Structure(kind="regex", value="a+")) for _ in range(3)]
    assert same[0] is same[1] is same[2]
    assert not same[0].done()
    tokenizer.open.set()
    assert same[0].result() is same[1].result()
    assert same[0].done()
    assert compiler.compile(Structure(kind="regex", value="b+")).result()
    assert tokenizer.asked == byte_level.vocab_size
    compiler.close()


def test_a_compilation_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 0.05)
    end = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = Compilation(pool, lambda: end.wait(30))
        with pytest.raises(StructureError, match=r"more than 0\.05 s to compile"):
            slow.result()
        assert slow.done()
        # Its thread goes on: to start it again would only take one more.
        assert not slow.failed()
        slow.renew()
        assert slow.done()
        end.set()


def test_a_compilation_whose_turn_does_not_come_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 0.05)
    end = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        Compilation(pool, lambda: end.wait(30))
        behind = Compilation(pool, lambda: "a grammar")
        with pytest.raises(Busy, match="try again later"):
            behind.result()
        monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 30.0)
        behind.renew()
        assert not behind.done()
        end.set()
        assert behind.result() == "a grammar"


def test_old_structures_are_forgotten(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_KEPT_GRAMMARS", 2)
    compiler = StructureCompiler(byte_level)
    first = compiler.compile(Structure(kind="regex", value="a"))
    for value in "bc":
        compiler.compile(Structure(kind="regex", value=value))
    assert compiler.compile(Structure(kind="regex", value="a")) is not first
    compiler.close()


def test_a_model_without_an_end_token_has_no_structured_answers(byte_level: Tokenizer) -> None:
    tokenizer = Blocked(byte_level)
    tokenizer.eos_token_ids = frozenset()
    compiler = StructureCompiler(tokenizer)
    with pytest.raises(StructureError, match="no end token"):
        compiler.compile(Structure(kind="json_object")).result()
    compiler.close()


class Spelling:
    """A vocabulary in which `<bos>` is one token, and its letters are none."""

    vocab_size, eos_token_ids, special_ids = 3, frozenset({2}), frozenset({1, 2})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * text.startswith("x") + [1] * text.endswith("<bos>")

    def token_bytes(self, token_id: int) -> bytes:
        return (b"x", b"<bos>", b"<eos>")[token_id]


@pytest.mark.parametrize("text", ["<bos>", "x<bos>"])
def test_a_text_that_the_vocabulary_cannot_spell_is_refused(text: str) -> None:
    compiler = StructureCompiler(Spelling())
    with pytest.raises(StructureError, match="no answer can have this structure"):
        compiler.compile(Structure(kind="choice", value=json.dumps([text]))).result()
    compiler.close()
