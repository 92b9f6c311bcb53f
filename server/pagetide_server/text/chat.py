"""Chat templates: from a list of messages to the text of a prompt.

Templates are Jinja, with the extras that models' templates rely on (`raise_exception`, `strftime_now`, a `tojson` that
leaves characters alone, `break` and `continue`, `{% generation %}`), in a sandbox: they come with the model.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pagetide_spec.chat_template import template_text
from pagetide_spec.errors import PagetideError, SettingError

from .conversation import ChatTemplateError, normalized, objects, with_mark
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError", "Templates", "configured", "render"]

# What a request's own fields, or the renderer, give a template; `self` is Jinja's.
_RESERVED = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "template", "tokenizer",
        "chat_template", "self",
    }
)  # fmt: skip


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    templates: Templates,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt for `messages`. It brings its own special tokens: encode it without adding any.

    Messages and tools are as in the OpenAI API. `add_generation_prompt` ends the prompt with the beginning of an
    answer, `continue_final_message` inside the last message, so that the model goes on with it. `documents` are texts
    for templates that know retrieval, `variables` what else the template may read (`chat_template_kwargs`).

    Raises:
        ChatTemplateError: the client must change the request; carries the template's own words, if it raised.
    """
    if continue_final_message and add_generation_prompt:
        raise ChatTemplateError("continue_final_message: true: set add_generation_prompt to false with it")
    if taken := _RESERVED & (variables or {}).keys():
        raise ChatTemplateError(f"chat_template_kwargs: {', '.join(sorted(taken))}: cannot be set here")
    lists = {"tools": objects(tools, "tools"), "documents": objects(documents, "documents")}
    given = {name: found or None for name, found in lists.items()}
    arguments = {**tokenizer.special_tokens, **(variables or {}), **given}
    arguments["add_generation_prompt"] = add_generation_prompt
    return templates.pick(bool(tools)).render(messages, arguments, continue_final_message)


_USUAL, _WITH_TOOLS = "default", "tool_use"
# The client's error for a model without a template.
WAY_OUT = "start the server with --chat-template, or use /v1/completions"


def configured(setting: str | None, tokenizer: Tokenizer, way_out: str = WAY_OUT) -> Templates:
    """The templates that the setting `chat_template` (a file, or a template's text) names; None: the model's own.

    Compiles them, so that a broken one is found before the first request. `way_out` is what to do without any.

    Raises:
        SettingError: the file is missing, or a template does not compile.
    """
    try:
        texts = tokenizer.chat_templates if setting is None else {_USUAL: template_text(setting)}
        return Templates(texts, way_out)
    except ChatTemplateError as error:
        problem = str(error)
        if setting is None:
            problem = f"the model's own template does not compile ({error}); give another with --chat-template"
        raise SettingError("chat_template", setting, problem) from error


class Templates:
    """The templates to choose from, by name: one for chats with tools, and the usual one. Texts are compiled once."""

    def __init__(self, texts: Mapping[str, str], way_out: str = WAY_OUT) -> None:
        """Compile all of them; `way_out` is what to do where there is none.

        Raises:
            ChatTemplateError: one is no Jinja template.
        """
        self._way_out = way_out
        self._compiled = {name: _compiled(text) for name, text in texts.items()}

    def pick(self, has_tools: bool) -> ChatTemplate:
        """The template for a chat.

        Raises:
            ChatTemplateError: there is none.
        """
        found = self._compiled.get(_WITH_TOOLS) if has_tools else None
        found = found or self._compiled.get(_USUAL)
        if found is None:
            raise ChatTemplateError(f"the model has no chat template; {self._way_out}")
        return found


class ChatTemplate:
    """A compiled template.

    Attributes:
        text: its source.
        takes_parts: it reads message content that is a list of parts by itself.
        takes_text: it reads message content that is plain text.
    """

    def __init__(self, text: str) -> None:
        """Compile `text`.

        Raises:
            ChatTemplateError: it is no Jinja template; says the line.
        """
        self.text = text
        try:
            self._compiled = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        self.takes_parts = self._shows([{"type": "text", "text": _PROBE}])
        self.takes_text = self._shows(_PROBE) or not self.takes_parts

    def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], unfinished: bool) -> str:
        """The prompt for `messages`; `unfinished` cuts it right behind the content of the last one.

        Raises:
            ChatTemplateError: the messages do not have the needed form, or the template raised.
        """
        conversation = normalized(messages, self.takes_parts, self.takes_text)
        if not unfinished:
            return self._run(conversation, arguments)
        text = self._run(with_mark(conversation, _MARK), arguments)
        before, mark, _ = text.rpartition(_MARK.strip())
        if not mark:
            raise ChatTemplateError("continue_final_message: true: the chat template drops the last message's content")
        # Where the template trims contents, the blank that belongs to the mark is gone, and so are those before it.
        return before if text[len(before) :].startswith(_MARK) else before.rstrip()

    def _run(self, conversation: list[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
        try:
            return self._compiled.render(messages=conversation, **arguments)
        except Exception as error:
            words = str(error) or type(error).__name__
            raise ChatTemplateError(f"the chat template refused the messages: {words}") from error

    def _shows(self, content: Any) -> bool:
        """Whether the template writes a user message's content, and not its Python form."""
        try:
            text = self._run([{"role": "user", "content": content}], {"add_generation_prompt": True})
        except ChatTemplateError:
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text


_PROBE = "Pagetide-probe"
# The blank behind the mark shows whether the template trims contents.
_MARK = "<|pagetide-end-of-content|> "


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> ChatTemplate:
    return ChatTemplate(text)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; in serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model expects."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _RaisedByTemplate(PagetideError):
    """`raise_exception` was called."""


def _raise(message: str) -> None:
    raise _RaisedByTemplate(message)
