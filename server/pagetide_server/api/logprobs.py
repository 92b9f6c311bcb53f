"""Log probabilities in the two forms of the OpenAI API. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..text.tokenizer import Tokenizer
from ..wire.messages import TokenLogprobs

# JSON has no -Infinity; OpenAI writes this for a token that cannot come.
LOWEST = -9999.0


def finite(logprob: float) -> float:
    """A log probability that JSON can carry."""
    return logprob if logprob > LOWEST else LOWEST


def completion_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], entries: Sequence[TokenLogprobs | None], offset: int
) -> dict[str, Any]:
    """The form of /v1/completions. An entry of None (the first prompt token) has no log probability.

    `offset` is the place in the text of the first token.
    """
    return {
        "text_offset": _offsets(tokenizer, ids, offset)[:-1],
        "token_logprobs": [finite(e.logprob) if e else None for e in entries],
        "tokens": [tokenizer.token_text(i) for i in ids],
        "top_logprobs": [_top(tokenizer, e) if e else None for e in entries],
    }


def end_of_text(tokenizer: Tokenizer, ids: Sequence[int], offset: int) -> int:
    """The place in the text behind tokens of which the first begins at `offset`."""
    return _offsets(tokenizer, ids, offset)[-1]


def _offsets(tokenizer: Tokenizer, ids: Sequence[int], offset: int) -> list[int]:
    """Where each token begins, and where the last one ends. Special tokens take no place in the text.

    A character whose bytes are spread over several tokens belongs to the one that begins it.
    """
    lengths = [0 if i in tokenizer.special_ids else _begun(tokenizer.token_bytes(i)) for i in ids]
    return list(itertools.accumulate(lengths, initial=offset))


def _begun(data: bytes) -> int:
    """How many characters begin in a piece of UTF-8: its bytes but those that continue one."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def _top(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, float]:
    """Token text to log probability. Of two tokens with one text, the likelier one is kept."""
    top: dict[str, float] = {}
    for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
        top.setdefault(tokenizer.token_text(token_id), finite(logprob))
    top.setdefault(tokenizer.token_text(entry.token_id), finite(entry.logprob))
    return top


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    return {"content": [_chat_entry(tokenizer, e) for e in entries], "refusal": None}


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    top = zip(entry.top_ids, entry.top_logprobs, strict=True)
    return {
        **_chat_token(tokenizer, entry.token_id, entry.logprob),
        "top_logprobs": [_chat_token(tokenizer, token_id, logprob) for token_id, logprob in top],
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """vLLM's form for prompts: for each token, what is known of it and of the most probable ones, by token id."""
    return [_prompt_entry(tokenizer, e) if e else None for e in entries]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    ranked = enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1)
    rows = [(token_id, logprob, rank) for rank, (token_id, logprob) in ranked]
    rows.append((entry.token_id, entry.logprob, entry.rank))
    return {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": tokenizer.token_text(token_id)}
        for token_id, logprob, rank in rows
    }
