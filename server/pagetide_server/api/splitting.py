"""Which parsers a chat answer goes through, and what a request's tools and tool choice ask of the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pagetide_spec.config import EngineConfig

from ..text.answer import Delta
from ..wire.messages import SamplingParams, Structure, TokenLogprobs
from .errors import invalid, wrong
from .parts import Parts, TextParser
from .prompts import Prompter
from .protocol import ChatRequest
from .reasoning import CLOSE, OPEN, ThinkParser
from .structures import Asked
from .tools.forced import ListParser, NamedParser
from .tools.hermes import HermesParser
from .tools.llama3 import Llama3Parser
from .tools.mistral import MistralParser

_FORMATS: dict[str, Callable[[], TextParser]] = {
    "hermes": HermesParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
}
# What in a chat template gives a format away.
_SIGNS = {"hermes": ("<tool_call>",), "mistral": ("[TOOL_CALLS]",), "llama3": ("<|python_tag|>", '{"name": function')}
# Of a forced call: the form that models have learnt for calls. It is an option of the schemas' compiler.
_ONE_LINE = {"x-guidance": {"whitespace_pattern": " ?"}}
# Of a required list of calls. A model that repeats one would go on until its tokens run out, and end in the middle.
MAX_CALLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Splitter:
    """One answer's parser, and the tokens whose text it still holds back."""

    def __init__(
        self,
        parsers: list[TextParser],
        keeps_reasoning: bool = True,
        one_call: bool = False,
        tells_calls: bool = True,
    ) -> None:
        """Parsers in order: each gets the content that the one before left over.

        `one_call` drops all calls but the first; without `tells_calls` the finish reason stays as it is, which is what
        OpenAI does where a request has named the function.
        """
        self._parsers = parsers
        self._keeps_reasoning, self._one_call, self._tells_calls = keeps_reasoning, one_call, tells_calls
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._called = False

    @property
    def is_idle(self) -> bool:
        """Whether all text stays what it is: content."""
        return not self._parsers

    def push(self, text: str, finished: bool) -> Parts:
        """The parts of the next piece of text."""
        parts = Parts(content=text)
        for parser in self._parsers:
            found = parser.push(parts.content, finished)
            parts = Parts(found.content, parts.reasoning + found.reasoning, parts.tool_calls + found.tool_calls)
        if not self._keeps_reasoning:
            parts.reasoning = ""
        if self._one_call:
            parts.tool_calls = [call for call in parts.tool_calls if call.index == 0]
        self._called = self._called or bool(parts.tool_calls)
        return parts

    def hold(self, delta: Delta) -> None:
        """Keep a delta's tokens until their text, or the end, is sent."""
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs

    def release(self) -> tuple[list[int], list[TokenLogprobs]]:
        """The tokens held so far."""
        held = self._token_ids, self._logprobs
        self._token_ids, self._logprobs = [], []
        return held

    def reason(self, finish_reason: str | None) -> str | None:
        """The finish reason, which may be tool calls."""
        return "tool_calls" if finish_reason == "stop" and self._called and self._tells_calls else finish_reason


def splitter_factory(
    config: EngineConfig, prompter: Prompter, request: ChatRequest, params: SamplingParams, prompt: str
) -> Callable[[], Splitter]:
    """What makes the splitter of each answer of a request; `prompt` is what its template has made."""
    makers: list[Callable[[], TextParser]] = []
    if config.reasoning_parser != "none" and request.separate_reasoning is not False:
        opened = config.reasoning_parser == "think_open" and begins_in_reasoning(params, prompt)
        makers.append(lambda: ThinkParser(opened))
    if (calls := _call_parser(config, prompter, request)) is not None:
        makers.append(calls)
    return lambda: Splitter(
        [make() for make in makers],
        keeps_reasoning=request.include_reasoning is not False,
        one_call=request.parallel_tool_calls is False,
        tells_calls=forced_name(request) is None,
    )


def begins_in_reasoning(params: SamplingParams, prompt: str) -> bool:
    """Whether an answer to a template that opens the tag goes on with reasoning.

    It does not where the template has closed the tag again, as for a request without reasoning, nor where the answer
    must have a form, which holds from its first token on.
    """
    return params.structure is None and prompt.rfind(CLOSE) <= prompt.rfind(OPEN)


def with_forced_call(request: ChatRequest, asked: Asked) -> Asked:
    """The form that a forced tool call must have; where none is forced, what the request's other fields ask for.

    Raises:
        ApiError: 400; wrong tools, or a choice that does not fit them.
    """
    _check_tools(request)
    schema = _forced_schema(request) if uses_tools(request) else None
    if schema is None:
        return asked
    if asked.structure is not None:
        raise invalid("tool_choice: a forced call and another form of the answer exclude each other", "tool_choice")
    value = msgspec.json.encode({**_ONE_LINE, **schema}).decode()
    return Asked(_forced_field(request), Structure(kind="json", value=value))


def showing_calls(request: ChatRequest, params: SamplingParams) -> SamplingParams:
    """The parameters, with the marks of tool calls in the text: they are special tokens in some vocabularies."""
    if not uses_tools(request) or request.skip_special_tokens is not None:
        return params
    return msgspec.structs.replace(params, skip_special_tokens=False)


def uses_tools(request: ChatRequest) -> bool:
    """Whether the answer may be a tool call."""
    return bool(request.tools) and request.tool_choice != "none"


def forced_name(request: ChatRequest) -> str | None:
    """The one function that must be called, if the request names one."""
    choice = request.tool_choice
    return choice["function"]["name"] if isinstance(choice, dict) else None


def format_of(config: EngineConfig, template: str) -> str:
    """The format of tool calls: as set, or as the chat template shows it; "none" where it shows none."""
    if config.tool_call_parser != "auto":
        return config.tool_call_parser
    return next((name for name, signs in _SIGNS.items() if any(sign in template for sign in signs)), "none")


def _call_parser(config: EngineConfig, prompter: Prompter, request: ChatRequest) -> Callable[[], TextParser] | None:
    if not uses_tools(request):
        return None
    if (name := forced_name(request)) is not None:
        return lambda: NamedParser(name)
    if request.tool_choice == "required":
        return ListParser
    return _FORMATS.get(format_of(config, prompter.templates.pick(has_tools=True).text))


def _forced_field(request: ChatRequest) -> str:
    """What of a request asks for the form of its forced call."""
    name, tools = forced_name(request), request.tools or []
    places = [f"tools[{i}].function.parameters" for i, tool in enumerate(tools) if tool["function"]["name"] == name]
    # The last one of a name is the one that counts.
    return places[-1] if places else "tools"


def _forced_schema(request: ChatRequest) -> dict[str, Any] | None:
    functions = {tool["function"]["name"]: tool["function"].get("parameters") for tool in request.tools or []}
    if (name := forced_name(request)) is not None:
        return functions[name] or {"type": "object"}
    if request.tool_choice != "required":
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                # With an id of its own, because references such as #/$defs/City count from the root of the parameters.
                "arguments": {"$id": f"urn:tool:{name}", **parameters} if parameters else {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, parameters in functions.items()
    ]
    most = 1 if request.parallel_tool_calls is False else MAX_CALLS
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}


def _check_tools(request: ChatRequest) -> None:
    names = [_tool_name(tool, number) for number, tool in enumerate(request.tools or [])]
    choice = request.tool_choice
    if choice is None or choice in ("none", "auto"):
        return
    if not names:
        raise wrong("tool_choice", choice, "needs tools")
    if choice == "required":
        return
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name is None:
        raise wrong("tool_choice", choice, "must be none, auto, required, or name a function")
    if name not in names:
        raise wrong("tool_choice", name, f"is none of the tools: {', '.join(names)[:200]}")


def _tool_name(tool: dict[str, Any], number: int) -> str:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise wrong(f"tools[{number}]", tool, "must be of type function")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"tools[{number}].function.name", name, "must be 1 to 128 letters, digits or one of _.:-")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(f"tools[{number}].function.parameters", parameters, "must be a JSON schema, which is an object")
    return name
