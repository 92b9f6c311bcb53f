"""JSON as it may be laid out, and schemas that refer to their own parts."""

import json
from typing import Any

import pytest

from pagetide_server.api.protocol import ChatRequest, StructuredOutputs
from pagetide_server.api.splitting import MAX_CALLS, with_forced_call
from pagetide_server.api.structures import FREE, asked_structure
from pagetide_server.engine.sampling.compiler import StructureCompiler
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import Structure

from .answers import SCHEMA


def follows(tokenizer: Tokenizer, compiler: StructureCompiler, structure: Structure, text: str) -> bool:
    """Whether `text` may be written, and may end there."""
    matcher = compiler.compile(structure).result().matcher()
    allowed = all(matcher.accept(token) for token in tokenizer.encode(text, add_special_tokens=False))
    return allowed and matcher.inner.is_accepting()


DOCUMENT = {"color": "red", "count": 3}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        pytest.param(json.dumps(DOCUMENT, separators=(",", ":")), True, id="compact"),
        pytest.param(json.dumps(DOCUMENT), True, id="spaced"),
        pytest.param(json.dumps(DOCUMENT, indent=2), True, id="a line for each part"),
        pytest.param(json.dumps(DOCUMENT, indent="\t"), True, id="indented by a tab"),
        pytest.param(json.dumps(DOCUMENT, indent=2).replace("\n", "\r\n"), True, id="lines as Windows ends them"),
        pytest.param('{\n\n"color": "red", "count": 3}', False, id="an empty line"),
        pytest.param('{  "color": "red", "count": 3}', False, id="two spaces where one is enough"),
        pytest.param("{\n" + " " * 17 + '"color": "red", "count": 3}', False, id="an endless indentation"),
        pytest.param("{\n" + "\t" * 5 + '"color": "red", "count": 3}', False, id="an endless indentation by tabs"),
    ],
)
def test_json_has_a_layout_that_people_use(
    byte_level: Tokenizer, compiler: StructureCompiler, text: str, allowed: bool
) -> None:
    assert follows(byte_level, compiler, Structure(kind="json", value=SCHEMA), text) is allowed


def parameters(*cities: str) -> dict[str, Any]:
    """The parameters of a function as pydantic writes them: parts that are named once and referred to."""
    place = {"type": "object", "properties": {"city": {"enum": cities}}, "required": ["city"]}
    properties = {"at": {"$ref": "#/$defs/Place"}, "next": {"$ref": "#"}}
    return {"type": "object", "properties": properties, "required": ["at"], "$defs": {"Place": place}}


def call(name: str, city: str) -> str:
    return json.dumps({"name": name, "arguments": {"at": {"city": city}, "next": {"at": {"city": city}}}})


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        pytest.param(f"[{call('north', 'Oslo')}]", True, id="a call"),
        pytest.param(f"[{call('north', 'Oslo')}, {call('south', 'Rome')}]", True, id="calls of two functions"),
        pytest.param(f"[{', '.join([call('north', 'Oslo')] * MAX_CALLS)}]", True, id="as many calls as may be"),
        pytest.param(f"[{', '.join([call('north', 'Oslo')] * (MAX_CALLS + 1))}]", False, id="one more"),
        pytest.param(f"[{call('north', 'Rome')}]", False, id="a part of another function's parameters"),
        pytest.param(f"[\n{call('north', 'Oslo')}\n]", False, id="a call on a line of its own"),
    ],
)
def test_a_required_call_follows_what_its_parameters_refer_to(
    byte_level: Tokenizer, compiler: StructureCompiler, text: str, allowed: bool
) -> None:
    places = {"north": parameters("Oslo"), "south": parameters("Rome")}
    tools = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in places.items()]
    request = ChatRequest(messages=[], tools=tools, tool_choice="required")
    structure = with_forced_call(request, FREE).structure
    assert structure is not None
    assert follows(byte_level, compiler, structure, text) is allowed


def test_a_layout_that_is_asked_for_leaves_references_whole(byte_level: Tokenizer, compiler: StructureCompiler) -> None:
    outputs = StructuredOutputs(json=parameters("Oslo"), disable_any_whitespace=True)
    structure = asked_structure(ChatRequest(messages=[], structured_outputs=outputs)).structure
    assert structure is not None
    assert follows(byte_level, compiler, structure, '{"at":{"city":"Oslo"}}')
    assert not follows(byte_level, compiler, structure, '{"at": {"city":"Oslo"}}')
