"""Structures that cannot be followed are refused in one line; large ones are followed."""

import json
import re
import time

import pytest
import torch

from pagetide_server.api.protocol import ChatRequest
from pagetide_server.api.splitting import with_forced_call
from pagetide_server.api.structures import FREE
from pagetide_server.engine import isolation
from pagetide_server.engine.faults import RequestFault
from pagetide_server.engine.sampling.compiler import StructureCompiler, StructureError
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import Structure

from .answers import MakeSequence, write


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
    assert fault.kind == ("invalid" if changes else "structure")
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
    ("wrong", "told"),
    [
        pytest.param({"type": "objct"}, "the arguments of second: json: Invalid type: objct", id="in a schema"),
        pytest.param({"$ref": "#/$defs/none"}, "the arguments of second: json: ", id="a reference to nothing"),
    ],
)
def test_of_several_functions_the_one_at_fault_is_named(
    compiler: StructureCompiler, wrong: dict[str, str], told: str
) -> None:
    schemas = {"first": {"type": "object"}, "second": wrong, "third": {"type": "array"}, "fourth": None}
    tools = [{"function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
    structure = with_forced_call(ChatRequest(messages=[], tools=tools, tool_choice="required"), FREE).structure
    with pytest.raises(StructureError, match=re.escape(told)):
        compiler.compile(structure).result()


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
