"""The `LLM` class: conversations go through the chat template."""

from __future__ import annotations

import pytest

from pagetide_server import LLM
from pagetide_server import llm as llm_module
from pagetide_server.text.chat import ChatTemplateError, Templates, configured, render
from pagetide_spec.errors import SettingError

from .calls import GREEDY, SETTINGS, USER


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "user", "content": "Hi"}]
    (result,) = llm.chat(messages, GREEDY)
    assert result.prompt == render(llm._tokenizer, messages, configured(None, llm._tokenizer))
    assert result.prompt_token_ids == llm._tokenizer.encode(result.prompt, add_special_tokens=False)
    pair = llm.chat([messages, [{"role": "user", "content": "Bye"}]], GREEDY)
    assert pair[0].outputs[0].token_ids == result.outputs[0].token_ids
    assert "Bye" in pair[1].prompt


@pytest.mark.parametrize(
    ("conversations", "options", "said"),
    [
        pytest.param([], {}, "messages: is empty", id="no message"),
        pytest.param([[]], {}, "messages: is empty", id="an empty conversation"),
        pytest.param([{"content": "nobody says this"}], {}, "messages[0].role: must be a text", id="no role"),
        pytest.param([{**USER, "tool_calls": 5}], {}, "messages[0].tool_calls: must be a list", id="a number of calls"),
        pytest.param(
            [{**USER, "tool_calls": {"a": 1}}], {}, "messages[0].tool_calls: must be", id="an object of calls"
        ),
        pytest.param([USER], {"tools": 5}, "tools: must be a list of objects, not 5", id="a number of tools"),
    ],
)
def test_wrong_conversations(llm, conversations, options, said):
    with pytest.raises(ChatTemplateError) as caught:
        llm.chat(conversations, GREEDY, **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "conversations",
    [
        pytest.param("hello", id="a text"),
        pytest.param(["hello"], id="a list of texts"),
        pytest.param(None, id="None"),
        pytest.param([{"role": "user", "content": "hello"}, "and"], id="a text behind a message"),
    ],
)
def test_what_is_no_conversation_is_refused(llm, conversations):
    with pytest.raises(SettingError, match=r"messages: .*must be a list of messages such as"):
        llm.chat(conversations, GREEDY)


def test_a_model_without_a_template_names_the_librarys_way_out(llm, monkeypatch):
    monkeypatch.setattr(llm, "_templates", Templates({}, llm_module._WITHOUT_TEMPLATE))
    with pytest.raises(ChatTemplateError, match=r"no chat template; .*chat_template=.* or use generate$"):
        llm.chat([USER], GREEDY)


def test_variables_go_to_the_template(tiny_model):
    template = "{% if loud %}LOUD {% endif %}{{ messages[0]['content'] }}"
    with LLM(str(tiny_model("llama")), chat_template=template, **SETTINGS) as made:
        messages = [{"role": "user", "content": "hi"}]
        assert made.chat(messages, GREEDY, loud=True)[0].prompt == "LOUD hi"
        assert made.chat(messages, GREEDY)[0].prompt == "hi"
