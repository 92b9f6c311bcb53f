"""The library: `LLM(model=...).generate(prompts, params)`, with the engine in the caller's own process."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

from .interrupts import held_back
from .progress import LoadingProgress, prompts_bar
from .results import OpenPrompt, RequestOutput
from .text.chat import configured, render
from .text.tokenizer import Tokenizer
from .threads import wait_passively
from .wire.checks import check_params, check_prompt, check_text, plain_number
from .wire.messages import AbortRequest, AddRequest, EngineStats, SamplingParams

# Text, token ids, or either under vLLM's names: {"prompt": text} or {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]

# What `render` takes by itself; all else is a variable of the template.
_RENDER_OPTIONS = ("tools", "documents", "add_generation_prompt", "continue_final_message")

# How often to look whether a grammar is compiled, when there is nothing else to do.
COMPILE_POLL_SECONDS = 0.005


class LLM:
    """A model for offline use.

    `LLM(model="path or hub id", max_num_seqs=8, ...)` takes every EngineConfig field. Not thread-safe. Use it as a
    context manager, or `close()` it, to free the model's memory.

    Raises:
        SettingError: an engine setting that does not exist or has a wrong value.
        PagetideError: the model cannot be loaded.
    """

    def __init__(self, model: str, **engine_config: Any) -> None:
        self._core: Any = None
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
        core = self._open_core()
        each = _as_list(prompts)
        requests = [self._request(p, one) for p, one in zip(each, _one_each(params, len(each)), strict=True)]
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
        several = conversations if conversations and not isinstance(conversations[0], Mapping) else [conversations]
        options = {name: template_options.pop(name) for name in _RENDER_OPTIONS if name in template_options}
        options |= {"template": self._template, "variables": template_options}
        texts = [render(self._tokenizer, messages, **options) for messages in several]  # type: ignore[arg-type]
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
        prompt = _plain(prompt)
        text = prompt if isinstance(prompt, str) else None
        if text is not None:
            check_text(text, "prompt")
        params = check_params(params, self._core.ready)
        token_ids = self._tokenizer.encode(text) if text is not None else _token_ids(prompt)
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


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or not isinstance(params, Sequence):
        return [SamplingParams() if params is None else params] * count
    if len(params) != count:
        raise SettingError("params", f"{len(params)} entries", f"must be one, or {count}: one a prompt")
    return list(params)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    try:
        each = list(prompts)
    except TypeError:
        raise SettingError("prompts", prompts, "must be text, a list of token ids, or a list of these") from None
    return [prompts] if each and all(isinstance(plain_number(p), int) for p in each) else each  # type: ignore


def _plain(prompt: Prompt) -> str | Sequence[int]:
    if not isinstance(prompt, Mapping):
        return prompt
    known = [name for name in ("prompt_token_ids", "prompt") if name in prompt]
    if len(known) != 1 or len(prompt) != 1:
        raise SettingError("prompt", dict(prompt), "must have one entry, prompt or prompt_token_ids")
    return prompt[known[0]]  # type: ignore[no-any-return]


def _token_ids(prompt: Any) -> list[int]:
    try:
        return [plain_number(token_id) for token_id in prompt]
    except TypeError:
        raise SettingError("prompt", prompt, "must be text or a list of token ids") from None
