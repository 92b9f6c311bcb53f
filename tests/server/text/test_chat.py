from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from pagetide_server.text.chat import ChatTemplate, ChatTemplateError, Templates, configured, render
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.errors import SettingError

TEXT_ONLY = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] + '' }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARTS_ONLY = "{% for m in messages %}{% for p in m['content'] %}[{{ p['text'] }}]{% endfor %}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
TRIMS = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
USER = [{"role": "user", "content": "Hi"}]


def plain(**templates: str) -> Tokenizer:
    """A tokenizer whose vocabulary does not matter."""
    backend = Backend(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": templates})


_OPTIONS = ("tools", "documents", "add_generation_prompt", "continue_final_message")


def rendered(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    return render(plain(), messages, Templates({"default": template}), **options, variables=kwargs)


@pytest.mark.parametrize(
    ("template", "messages", "kwargs", "prompt"),
    [
        pytest.param(TEXT_ONLY, USER, {}, "<user>Hi</s><assistant>", id="an answer is begun"),
        pytest.param(TEXT_ONLY, USER, {"add_generation_prompt": False}, "<user>Hi</s>", id="or not"),
        pytest.param("{{ bos_token }}{{ messages|length }}{{ eos_token }}", USER, {}, "<s>1</s>", id="special tokens"),
        pytest.param("{{ enable_thinking }}", USER, {"enable_thinking": False}, "False", id="template variables"),
        pytest.param("{{ tools[0].name }}", USER, {"tools": [{"name": "f"}]}, "f", id="tools"),
        pytest.param("{{ tools is none }}", USER, {"tools": []}, "True", id="no tools are none"),
        pytest.param("{{ documents[0].text }}", USER, {"documents": [{"text": "d"}]}, "d", id="documents"),
        pytest.param("{{ messages | tojson }}", [{"role": "user", "content": "<é>"}], {},
                     '[{"role": "user", "content": "<é>"}]', id="tojson leaves characters alone"),
        pytest.param("{{ messages[0] | tojson(indent=1) }}", USER, {}, '{\n "role": "user",\n "content": "Hi"\n}',
                     id="tojson indents"),
        pytest.param("{{ strftime_now('%Y') | int > 2000 }}", USER, {}, "True", id="the date"),
        pytest.param("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", USER, {}, "1",
                     id="loop controls"),
        pytest.param("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", USER, {}, "abuserc",
                     id="generation marks are transparent"),
        pytest.param("  {% if true %}\nx\n  {% endif %}\n", USER, {}, "x\n", id="blocks leave no blank lines"),
        pytest.param("{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = 1 %}{% endfor %}{{ s.n }}",
                     USER, {}, "1", id="namespaces"),
    ],
)  # fmt: skip
def test_renders(template: str, messages: list[dict[str, Any]], kwargs: dict[str, Any], prompt: str) -> None:
    assert rendered(template, messages, **kwargs) == prompt


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("template", "content", "prompt"),
    [
        pytest.param(TEXT_ONLY, PARTS, "<user>a\nb</s>", id="parts become lines where only text is understood"),
        pytest.param(PARTS_ONLY, PARTS, "[a][b]", id="parts stay parts where they are read"),
        pytest.param(PARTS_ONLY, "a", "[a]", id="text becomes a part where only parts are read"),
        pytest.param(BOTH, "a", "a", id="text stays text where both are read"),
        pytest.param(BOTH, PARTS, "ab", id="and parts stay parts"),
        pytest.param(BOTH, [{"type": "refusal", "refusal": "no"}], "no", id="a refusal is text"),
        pytest.param(TEXT_ONLY, [], "<user></s>", id="no parts are no text"),
    ],
)
def test_content_parts(template: str, content: Any, prompt: str) -> None:
    assert rendered(template, [{"role": "user", "content": content}], add_generation_prompt=False) == prompt


@pytest.mark.parametrize(
    ("template", "content", "prompt"),
    [
        pytest.param(TEXT_ONLY, "So ", "<user>Hi</s><assistant>So ", id="ends right behind the content"),
        pytest.param(TRIMS, "So ", "<user>Hi</s><assistant>So", id="as the template trims it"),
        pytest.param(PARTS_ONLY, [{"type": "text", "text": "So"}], "[Hi][So", id="inside the last part"),
        pytest.param(TEXT_ONLY, "Hi", "<user>Hi</s><assistant>Hi", id="though the text was there before"),
    ],
)
def test_continues_the_last_message(template: str, content: Any, prompt: str) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]
    assert rendered(template, messages, add_generation_prompt=False, continue_final_message=True) == prompt


def test_tool_calls_reach_the_template_as_objects() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    template = "{{ messages[0].tool_calls[0].function.arguments.x[0] }}{{ messages[0].content is defined }}"
    assert rendered(template, messages) == "1False"
    assert call["function"]["arguments"] == '{"x": [1]}'


def test_reasoning_is_readable_under_each_name() -> None:
    message = {"role": "assistant", "content": "a", "reasoning": "r"}
    assert rendered("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", [message]) == "rr"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("template", "messages", "kwargs", "words"),
    [
        pytest.param("{{ raise_exception('roles must alternate') }}", USER, {}, "roles must alternate",
                     id="the template raises on purpose"),
        pytest.param("{{ messages[7].content.x }}", USER, {}, "has no element 7", id="the template trips"),
        pytest.param("{{ 1 / 0 }}", USER, {}, "division", id="arithmetic fails"),
        pytest.param("{{ ().__class__.__base__ }}", USER, {}, "unsafe", id="the sandbox holds"),
        pytest.param("{{ x | tojson }}", USER, {"x": deep(20_000)}, "recursion|nest", id="a value nested too deep"),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", USER, {}, "recursion", id="endless recursion"),
        pytest.param("{% for", USER, {}, "line 1", id="no Jinja at all"),
        pytest.param("x", [{"role": "user", "content": 5}], {}, r"messages\[0\].content", id="content of a wrong type"),
        pytest.param("x", [{"content": "a"}], {}, r"messages\[0\].role", id="no role"),
        pytest.param("x", [{"role": "user", "content": [{"type": "image_url"}]}], {}, r"content\[0\].type: 'image_url'",
                     id="an image"),
        pytest.param("x", [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], {},
                     r"messages\[0\].tool_calls\[0\].function.arguments", id="tool arguments that are no JSON"),
        pytest.param(TEXT_ONLY, USER, {"continue_final_message": True}, "add_generation_prompt",
                     id="to continue and to begin"),
        pytest.param("nothing", USER, {"continue_final_message": True, "add_generation_prompt": False},
                     "continue_final_message", id="to continue what is not shown"),
        pytest.param(TEXT_ONLY, [], {"continue_final_message": True, "add_generation_prompt": False},
                     "messages: is empty", id="to continue nothing"),
        pytest.param("x", [], {}, "messages: is empty", id="no message"),
        pytest.param("x", "hi", {}, "messages: must be a list of objects, not 'hi'", id="text for the messages"),
        pytest.param("x", ["hi"], {}, r"messages\[0\]: must be an object, not 'hi'", id="text for a message"),
        pytest.param("x", [{"role": ""}], {}, r"messages\[0\].role: must be a text such as user", id="an empty role"),
        pytest.param("x", [{"role": "a", "tool_calls": 5}], {}, r"messages\[0\].tool_calls: must be a list of objects",
                     id="a number for the tool calls"),
        pytest.param("x", [{"role": "a", "tool_calls": {"a": 1}}], {}, r"messages\[0\].tool_calls: must be a list",
                     id="an object for the tool calls"),
        pytest.param("x", [{"role": "a", "tool_calls": ["f"]}], {}, r"tool_calls\[0\]: must be an object", id="a name"),
        pytest.param("x", USER, {"tools": 5}, "tools: must be a list of objects, not 5", id="a number for the tools"),
        pytest.param("x", USER, {"documents": ["d"]}, r"documents\[0\]: must be an object", id="text for a document"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_the_clients_error_in_one_line(
    template: str, messages: list[dict[str, Any]], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ChatTemplateError, match=words) as caught:
        rendered(template, messages, **kwargs)
    assert "\n" not in str(caught.value)


def test_without_a_template_the_error_names_the_way_out() -> None:
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        render(plain(), USER, configured(None, plain()))


def test_the_models_own_templates_are_used() -> None:
    tokenizer = plain(default="plain", tool_use="with {{ tools|length }}")
    own = configured(None, tokenizer)
    assert render(tokenizer, USER, own) == "plain"
    assert render(tokenizer, USER, own, tools=[{}]) == "with 1"


def test_a_setting_may_hold_a_template_or_name_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("from a file, {{ messages[0].content }}", encoding="utf-8")
    for setting, prompt in ((str(file), "from a file, Hi"), ("{{ messages[0].role }}", "user")):
        assert render(plain(), USER, configured(setting, plain())) == prompt


def test_templates_are_picked_by_whether_there_are_tools() -> None:
    own = configured(None, plain(default="usual", tool_use="with tools"))
    assert [own.pick(has_tools).text for has_tools in (False, True)] == ["usual", "with tools"]
    assert configured("{{ 1 }}", plain(tool_use="x")).pick(has_tools=True).text == "{{ 1 }}"


@pytest.mark.parametrize(
    ("setting", "own", "words"),
    [
        pytest.param("no/such/file.jinja", {}, "neither a template nor a file", id="a missing file"),
        pytest.param("{% if %}", {}, "line 1", id="a template that does not compile"),
        pytest.param(None, {"default": "{{ oops"}, "--chat-template", id="the model's own does not compile"),
    ],
)
def test_a_bad_setting_is_found_before_the_first_request(setting: str | None, own: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words) as caught:
        configured(setting, plain(**own))
    assert caught.value.field == "chat_template"


def test_transformers_renders_the_same(tokenizers: dict[str, Tokenizer]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers["byte_level"]._backend, bos_token="<bos>")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 < 2?"},
        {"role": "assistant", "content": "Yes "},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    template = "{{ bos_token }}{{ tools | tojson(indent=2) }}" + TEXT_ONLY
    for final in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
        expected = theirs.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False, **final)
        ours = {"add_generation_prompt": False, **final}
        assert render(tokenizers["byte_level"], messages, Templates({"default": template}), tools, **ours) == expected


def test_probing_finds_what_a_template_reads() -> None:
    found = {t: (ChatTemplate(t).takes_text, ChatTemplate(t).takes_parts) for t in (TEXT_ONLY, PARTS_ONLY, BOTH)}
    assert found == {TEXT_ONLY: (True, False), PARTS_ONLY: (False, True), BOTH: (True, True)}
