"""The library: `LLM(model=...).generate(prompts, params)`, with the engine in the caller's own process."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.logs import attach_log
from pagetide_spec.setting import setting_of

from .before_torch import prepare_environment
from .inputs import Message, Prompt, as_conversations, as_list, one_each
from .interrupts import held_back
from .process_memory import frozen_heap
from .progress import LoadingProgress, prompts_bar
from .requests import RequestMaker
from .results import OpenPrompt, RequestOutput
from .text.chat import configured, render
from .text.tokenizer import Tokenizer
from .wire.checks import check_text
from .wire.messages import AbortRequest, EngineStats, SamplingParams

# Of the settings of the group "server" those that mean something here, and of the others those that do not.
_FOLLOWED = {"chat_template", "log_level", "log_format"}
_OF_A_SERVER = {"max_queue_len", "served_model_name"}

# What `render` takes by itself; all else is a variable of the template.
_RENDER_OPTIONS = ("tools", "documents", "add_generation_prompt", "continue_final_message")

_WITHOUT_TEMPLATE = "give LLM(..., chat_template=...) a template's text or file, or use generate"

# How often to look whether a grammar is compiled, when there is nothing else to do.
COMPILE_POLL_SECONDS = 0.005


class LLM:
    """A model for offline use.

    `LLM(model="path or hub id", max_num_seqs=8, ...)` takes every EngineConfig field but those that only a server could
    follow. Of calls from several threads one waits for the other. Use it as a context manager, or `close()` it, to free
    the model's memory.

    Raises:
        SettingError: an engine setting that does not exist or has a wrong value.
        PagetideError: the model cannot be loaded.
    """

    def __init__(self, model: str, **engine_config: Any) -> None:
        self._core: Any = None
        # Reentrant for handlers of signals that close it.
        self._turn = threading.RLock()
        self._process = os.getpid()
        self.config = _engine_config({"model": model, **engine_config})
        attach_log(__package__, self.config.log_level, self.config.log_format)
        prepare_environment()
        from .factory import create_core

        with LoadingProgress() as progress:
            self._tokenizer = Tokenizer.load(self.config, progress.report)
            self._templates = configured(self.config.chat_template, self._tokenizer, _WITHOUT_TEMPLATE)
            self._core = create_core(self.config, progress.report, self._tokenizer, warm=False)
        self._requests = RequestMaker(self._tokenizer, self._core.ready)

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
            self._open_core()
            with prompts_bar(len(each), progress) as advance:
                requests = self._requests.make(each, one_each(params, len(each)))
                with frozen_heap():
                    self._answer(requests, advance)
        return [r.result() for r in requests]

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
        options = {name: template_options.pop(name) for name in _RENDER_OPTIONS if name in template_options}
        texts = [
            render(self._tokenizer, messages, self._templates, **options, variables=template_options)
            for messages in as_conversations(conversations)
        ]
        for text in texts:
            check_text(text, "messages")
        # The template writes the special tokens itself.
        ids = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        results = self.generate(ids, params, progress=progress)
        return [dataclasses.replace(result, prompt=text) for result, text in zip(results, texts, strict=True)]

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
        if os.getpid() != self._process and sys.modules["torch"].get_num_threads() > 1:
            # A fork has no other threads than the one that forked: the first parallel loop would wait for ever.
            raise PagetideError("this LLM does not work behind a fork; start processes by the method `spawn`")
        return self._core

    def _answer(self, requests: list[OpenPrompt], advance: Callable[[], object]) -> None:
        """Run the requests to their end; whatever happens, none of them stays in the engine."""
        with held_back() as interrupt:
            try:
                self._run({r.add.request_id: r for r in requests}, advance, interrupt.deliver)
            finally:
                if interrupt.broke_in:
                    self.close()  # nobody knows how far the step had come
                else:
                    for request in requests:
                        self._core.abort(AbortRequest(request.add.request_id))

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


def _engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """The configuration of an engine that no server stands before.

    Raises:
        SettingError: a setting that does not exist, has a wrong value, or only a server could follow.
    """
    config = EngineConfig.from_mapping(settings)
    groups = {field.name: setting_of(field).group for field in dataclasses.fields(EngineConfig)}
    for name, value in settings.items():
        if name in _OF_A_SERVER or (groups[name] == "server" and name not in _FOLLOWED):
            raise SettingError(name, value, "is a setting of a server, which LLM is not; leave it out")
    # The bound of the queue protects a server from its clients; here all prompts are in memory anyhow.
    return dataclasses.replace(config, max_queue_len=sys.maxsize)
