"""Where prompts are made: short ones at once, long ones beside the event loop."""

from __future__ import annotations

import contextlib
import threading

import pytest

from pagetide_server.api.prompts import INLINE_CHARACTERS, Prompter
from pagetide_server.api.protocol import ChatRequest
from pagetide_server.api.validation import Limits
from pagetide_server.text.chat import configured
from pagetide_server.text.tokenizer import Tokenizer

LONG = "x" * (INLINE_CHARACTERS + 1)


@pytest.mark.parametrize(
    ("content", "thread"),
    [
        pytest.param("Hi", "MainThread", id="a short text"),
        pytest.param(LONG, "tokenize_0", id="a long text"),
        pytest.param([{"type": "text", "text": "Hi"}], "MainThread", id="a short text in parts"),
        pytest.param([{"type": "text", "text": LONG}], "tokenize_0", id="a long text in parts"),
        pytest.param(["x", {"type": "text", "text": 1}, {}], "MainThread", id="parts that are none"),
    ],
)
async def test_a_long_chat_is_rendered_in_a_thread(tiny_model, monkeypatch, content, thread):
    tokenizer = Tokenizer.from_folder(tiny_model)
    prompter = Prompter(tokenizer, configured(None, tokenizer), Limits(512, tokenizer.vocab_size, 1))
    monkeypatch.setattr(prompter, "_render", lambda request: threading.current_thread().name)
    with contextlib.closing(prompter):
        assert await prompter.render(ChatRequest(messages=[{"role": "user", "content": content}])) == thread
