"""From the prompts and parameters that callers of the library give to requests for the engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pagetide_spec.errors import SettingError

from .results import OpenPrompt
from .text.conversation import ChatTemplateError
from .text.tokenizer import Tokenizer
from .wire.checks import check_params, check_prompt, check_text, plain_number
from .wire.messages import AddRequest, Ready, SamplingParams

# Text, token ids, or either under vLLM's names: {"prompt": text} or {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


class RequestMaker:
    """Makes the requests of one model; their ids never repeat."""

    def __init__(self, tokenizer: Tokenizer, ready: Ready) -> None:
        self._tokenizer, self._ready = tokenizer, ready
        self._ids = itertools.count()

    def make(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[OpenPrompt]:
        """One request a prompt. The texts are tokenized together, on as many cores as there are.

        Raises:
            SettingError: a prompt or a parameter that the model cannot fulfil.
        """
        # Mostly one object stands for all prompts.
        both = {key: self._checked(one) for key, one in {id(one): one for one in params}.items()}
        plain = [_plain(prompt) for prompt in prompts]
        encoded = iter(self._encode([prompt for prompt in plain if isinstance(prompt, str)]))
        found = []
        for prompt, given in zip(plain, params, strict=True):
            own, sent = both[id(given)]
            text, ids = (prompt, next(encoded)) if isinstance(prompt, str) else (None, _token_ids(prompt))
            check_prompt(ids, self._ready, scored_only=own.max_tokens == 0)
            request_id, arrival = f"llm-{next(self._ids)}", time.monotonic()
            add = AddRequest(request_id=request_id, prompt_token_ids=ids, params=sent, arrival=arrival)
            found.append(OpenPrompt(add, own, text, self._tokenizer))
        return found

    def _encode(self, texts: list[str]) -> list[list[int]]:
        for text in texts:
            check_text(text, "prompt")
        return self._tokenizer.encode_batch(texts)

    def _checked(self, given: SamplingParams) -> tuple[SamplingParams, SamplingParams]:
        """(the parameters, well typed; as the engine is to see them)"""
        params = check_params(given, self._ready)
        words = self._tokenizer.bad_word_ids(params.bad_words)
        # The best answers are told by their log probabilities, asked for or not.
        ranked = params.best_of is not None and params.logprobs is None
        return params, msgspec.structs.replace(
            params,
            logprobs=0 if ranked else params.logprobs,
            bad_words_token_ids=(*params.bad_words_token_ids, *words),
        )


def one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """The parameters of each of `count` prompts.

    Raises:
        SettingError: they are a list of another length.
    """
    if params is None or not isinstance(params, Sequence):
        return [SamplingParams() if params is None else params] * count
    if len(params) != count:
        raise SettingError("params", f"{len(params)} entries", f"must be one, or {count}: one a prompt")
    return list(params)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts, one or several, as a list.

    Raises:
        SettingError: they are neither.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    try:
        each = list(prompts)
    except TypeError:
        raise SettingError("prompts", prompts, "must be text, a list of token ids, or a list of these") from None
    return [prompts] if each and all(isinstance(plain_number(p), int) for p in each) else each  # type: ignore


def conversations_in(given: Any) -> list[Sequence[Message]]:
    """The conversations, one or several, as a list; what each of them holds is checked when it is rendered.

    Raises:
        ChatTemplateError: they are no list.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ChatTemplateError(f"messages: {given!r:.80}: must be a list of messages, or a list of such lists")
    return [given] if any(isinstance(one, Mapping) for one in given) else list(given)


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
