"""Requests for the engine, made of the prompts and parameters of the library's callers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import msgspec

from .inputs import Prompt, as_ids, plain
from .results import OpenPrompt
from .text.tokenizer import Tokenizer
from .wire.checks import check_params, check_prompt, check_text
from .wire.messages import AddRequest, Ready, SamplingParams


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
        bare = [plain(prompt) for prompt in prompts]
        encoded = iter(self._encode([prompt for prompt in bare if isinstance(prompt, str)]))
        found = []
        for prompt, given in zip(bare, params, strict=True):
            own, sent = both[id(given)]
            text, ids = (prompt, next(encoded)) if isinstance(prompt, str) else (None, as_ids(prompt))
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
        # The best answers are chosen by their log probabilities, asked for or not.
        ranked = params.best_of is not None and params.logprobs is None
        return params, msgspec.structs.replace(
            params,
            logprobs=0 if ranked else params.logprobs,
            bad_words_token_ids=(*params.bad_words_token_ids, *words),
        )
