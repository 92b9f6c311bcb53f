"""The library: `LLM(model=...).generate(prompts, params)`, with the engine in the caller's own process."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError

from .inputs import Message, Prompt, as_conversations, as_ids, as_list, one_each, plain
from .interrupts import held_back
from .progress import LoadingProgress, prompts_bar
from .results import OpenPrompt, RequestOutput
from .text.chat import configured, render
from .text.tokenizer import Tokenizer
from .threads import wait_passively
from .wire.checks import check_params, check_prompt, check_text
from .wire.messages import AbortRequest, AddRequest, EngineStats, SamplingParams

# What `render` takes by itself; all else is a variable of the template.
_RENDER_OPTIONS = ("tools", "documents", "add_generation_prompt", "continue_final_message")

# How often to look whether a grammar is compiled, when there is nothing else to do.
COMPILE_POLL_SECONDS = 0.005


class LLM:
    """A model for offline use.

    `LLM(model="path or hub id", max_num_seqs=8, ...)` takes every EngineConfig field. Of calls from several threads one
    waits for the other. Use it as a context manager, or `close()` it, to free the model's memory.

    Raises:
        SettingError: an engine setting that does not exist or has a wrong value.
        PagetideError: the model cannot be loaded.
    """

    def __init__(self, model: str, **engine_config: Any) -> None:
        self._core: Any = None
        # Reentrant for handlers of signals that close it.
        self._turn = threading.RLock()
        self.config = EngineConfig.from_mapping({"model": model, **engine_config})
        _set_up_logging(self.config)
        wait_passively()
        from .factory import create_core

        # The bound of the queue protects a server from its clients; here all prompts are in memory anyhow.
        unbounded = dataclasses.replace(self.config, max_queue_len=sys.maxsize)
        self._tokenizer = Tokenizer.load(self.config)
        self._template = configured(self.config.chat_template, self._tokenizer)
        with LoadingProgress() as progress:
            self._core = create_core(unbounded, progress.report)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts, batched; the results in the order of the prompts.

        Args:
            prompts: text or token ids (also as {"prompt": ...} or {"prompt_token_ids": ...}), or a list of these.
            params: one for all, or one a prompt; the defaults of SamplingParams if left out.
            progress: show a progress bar; None shows one on a terminal for more than one prompt.

        Raises:
            SettingError: a prompt or a parameter that the model cannot fulfil.
            GenerationError: the engine refused or failed a request; the others of the call are aborted.
            KeyboardInterrupt: Ctrl-C, at the end of the running step; a second one within that step closes the LLM.
        """
        each = as_list(prompts)
        with self._turn:
            core = self._open_core()
            requests = [self._request(p, one) for p, one in zip(each, one_each(params, len(each)), strict=True)]
            self._finish(core, requests, progress)
        return [r.result() for r in requests]

    def _finish(self, core: Any, requests: list[OpenPrompt], progress: bool | None) -> None:
        """Run all requests to their end; whatever happens, none of them is left in the engine."""
        with held_back() as interrupt:
            try:
                with prompts_bar(len(requests), progress) as advance:
                    self._run({r.add.request_id: r for r in requests}, advance, interrupt.deliver)
            finally:
                if interrupt.broke_in:
                    self.close()  # nobody knows how far the step had come
                else:
                    for request in requests:
                        core.abort(AbortRequest(request.add.request_id))

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages), or several; otherwise like `generate`.

        `template_options` are `tools`, `documents`, `add_generation_prompt`, `continue_final_message`, or variables of
        the model's own template, such as `enable_thinking`.

        Raises:
            ChatTemplateError: the template refuses the messages, or the model has none.
        """
        several = as_conversations(conversations)
        options = {name: template_options.pop(name) for name in _RENDER_OPTIONS if name in template_options}
        options |= {"template": self._template, "variables": template_options}
        texts = [render(self._tokenizer, messages, **options) for messages in several]
        for text in texts:
            check_text(text, "messages")
        # The template writes the special tokens itself.
        ids = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [
            dataclasses.replace(r, prompt=t)
            for r, t in zip(self.generate(ids, params, progress=progress), texts, strict=True)
        ]

    @property
    def vocab_size(self) -> int:
        """Token ids go from 0 to this number less one."""
        return int(self._open_core().ready.vocab_size)

    @property
    def stats(self) -> EngineStats:
        """State and totals of the engine as of now."""
        return self._open_core().stats()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Free the model and its KV cache; closing twice is no error."""
        with self._turn:
            if self._core is not None:
                self._core.close()
            self._core = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_core(self) -> Any:
        if self._core is None:
            raise PagetideError("this LLM is closed; make a new one")
        return self._core

    def _request(self, prompt: Prompt, params: SamplingParams) -> OpenPrompt:
        prompt = plain(prompt)
        text = prompt if isinstance(prompt, str) else None
        if text is not None:
            check_text(text, "prompt")
        params = check_params(params, self._core.ready)
        token_ids = self._tokenizer.encode(text) if text is not None else as_ids(prompt)
        check_prompt(token_ids, self._core.ready, scored_only=params.max_tokens == 0)
        words = self._tokenizer.bad_word_ids(params.bad_words)
        # The best answers are told by their log probabilities, asked for or not.
        ranked = params.best_of is not None and params.logprobs is None
        add = AddRequest(
            request_id=f"llm-{next(self._ids)}",
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(
                params,
                logprobs=0 if ranked else params.logprobs,
                bad_words_token_ids=(*params.bad_words_token_ids, *words),
            ),
            arrival=time.monotonic(),
        )
        return OpenPrompt(add, params, text, self._tokenizer)

    def _run(
        self, requests: dict[str, OpenPrompt], advance: Callable[[], object], between_steps: Callable[[], object]
    ) -> None:
        outputs = [output for r in requests.values() for output in self._core.add(r.add)]
        left = len(requests)
        while True:
            for output in outputs:
                request = requests[output.request_id]
                was_open = request.is_open
                if request.take(output):
                    self._core.abort(AbortRequest(output.request_id, output.index, "stop"))
                if was_open and not request.is_open:
                    left -= 1
                    advance()
            if not left:
                return
            between_steps()
            if not self._core.has_work():
                time.sleep(COMPILE_POLL_SECONDS)
            outputs = self._core.step().outputs


def _set_up_logging(config: EngineConfig) -> None:
    """Log at the configured level; to stderr if the program has set up no logging of its own."""
    logger = logging.getLogger("pagetide_server")
    logger.setLevel(config.log_level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
