"""Request fields to sampling parameters: the checks that one field's own limits cannot express. Pure."""

from __future__ import annotations

import dataclasses

import msgspec

from ..wire.checks import MAX_STOPS
from ..wire.messages import SamplingParams, Structure
from .errors import invalid, wrong
from .protocol import ChatRequest, CompletionRequest, SamplingFields

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024
MAX_ANSWERS = 8192
MAX_STOP_LENGTH = 4096
# Looked for at every step, unlike stop strings.
MAX_BAD_WORD_LENGTH = 256


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the model and the settings allow."""

    max_model_len: int
    vocab_size: int
    max_n: int


def sampling_params(
    request: CompletionRequest | ChatRequest, limits: Limits, structure: Structure | None = None
) -> SamplingParams:
    """The parameters of a request whose answers must look like `structure`, but for `max_tokens`, which depends on each
    prompt (`answer_length`), and for the token ids of bad words.

    Raises:
        ApiError: 400; names the field.
    """
    fields = {name: value for name in _PLAIN if (value := getattr(request, name)) is not None}
    n = request.n or 1
    _check_n(n, request.best_of, limits)
    logprobs = wanted_logprobs(request)
    if request.best_of is not None and request.best_of > n:
        if request.stream:
            raise invalid("best_of: choosing the best needs whole answers; it cannot be streamed", "best_of")
        logprobs = 0 if logprobs is None else logprobs
    return SamplingParams(
        **fields,
        n=n,
        best_of=request.best_of,
        stop=_texts("stop", [stop] if isinstance(stop := request.stop, str) else stop or [], MAX_STOP_LENGTH),
        stop_token_ids=_token_ids("stop_token_ids", request.stop_token_ids, limits),
        allowed_token_ids=_allowed(request, limits),
        logit_bias=_logit_bias(request, limits),
        bad_words=_texts("bad_words", request.bad_words or [], MAX_BAD_WORD_LENGTH),
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(request),
        structure=structure,
        max_tokens=None,
    )


_PLAIN = (
    "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "ignore_eos", "min_tokens", "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip


def check_answers(prompts: int, params: SamplingParams) -> None:
    """Refuse more answers than one request may have at once.

    Raises:
        ApiError: 400.
    """
    count = prompts * (params.best_of or params.n)
    if count > MAX_ANSWERS:
        raise wrong("n", params.best_of or params.n, f"{prompts} prompts make {count} answers; at most {MAX_ANSWERS}")


def with_length(params: SamplingParams, max_tokens: int, bad_words: tuple[tuple[int, ...], ...] = ()) -> SamplingParams:
    """The parameters, completed for one prompt.

    Raises:
        ApiError: 400; min_tokens does not fit.
    """
    if params.min_tokens > max_tokens:
        problem = f"must not be above max_tokens, which is {max_tokens} here"
        raise invalid(f"min_tokens: {params.min_tokens}: {problem}", "min_tokens")
    return msgspec.structs.replace(params, max_tokens=max_tokens, bad_words_token_ids=bad_words)


def answer_length(prompt_len: int, wanted: int | None, default: int | None, limits: Limits) -> int:
    """How many tokens the answer to a prompt may have.

    As vLLM does it, a length that was asked for must fit into the context, while a default is cut to what is left of
    it.

    Raises:
        ApiError: 400; the prompt leaves no room, or less than was asked for. Says both numbers.
    """
    window = limits.max_model_len
    check_prompt_length(prompt_len, limits, least_room(wanted))
    left = window - prompt_len
    if wanted is None:
        return left if default is None else min(default, left)
    if wanted > left:
        raise invalid(
            f"max_tokens: {wanted}: the model's context length is {window} tokens, of which the prompt takes "
            f"{prompt_len}; at most {left} are left",
            "max_tokens",
            "context_length_exceeded",
        )
    return wanted


def least_room(wanted: int | None) -> int:
    """How many tokens a prompt must leave room for: one, unless it only gets log probabilities (`max_tokens` 0)."""
    return 0 if wanted == 0 else 1


def check_prompt_length(prompt_len: int, limits: Limits, room: int = 1, at_least: bool = False) -> None:
    """Refuse a prompt that leaves no room for `room` tokens.

    Raises:
        ApiError: 400 with the context length and the prompt's length (`at_least`: a lower bound of it).
    """
    if prompt_len + room <= limits.max_model_len:
        return
    count = f"at least {prompt_len}" if at_least else str(prompt_len)
    raise invalid(
        f"the prompt has {count} tokens, but the model's context length is {limits.max_model_len} tokens, "
        "prompt and answer together; shorten the prompt",
        "prompt",
        "context_length_exceeded",
    )


def check_token_ids(name: str, ids: list[int], limits: Limits) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        ApiError: 400.
    """
    if ids and (min(ids) < 0 or max(ids) >= limits.vocab_size):
        unknown = next(i for i in ids if not 0 <= i < limits.vocab_size)
        raise wrong(name, unknown, f"token ids lie between 0 and {limits.vocab_size - 1}")


def wanted_logprobs(request: CompletionRequest | ChatRequest) -> int | None:
    """How many alternatives to report at each token; None: no log probabilities at all.

    Raises:
        ApiError: 400; top_logprobs without logprobs.
    """
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise wrong("top_logprobs", request.top_logprobs, "needs logprobs to be true")
    return None


def check_stream_options(request: SamplingFields) -> None:
    """Refuse stream options without a stream.

    Raises:
        ApiError: 400.
    """
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options: needs stream to be true", "stream_options")


def _check_n(n: int, best_of: int | None, limits: Limits) -> None:
    for name, value in (("n", n), ("best_of", best_of)):
        if value is not None and value > limits.max_n:
            raise wrong(name, value, f"must be at most {limits.max_n}")
    if best_of is not None and best_of < n:
        raise wrong("best_of", best_of, f"must be at least n, which is {n}")


def _texts(name: str, texts: list[str], longest: int) -> tuple[str, ...]:
    if len(texts) > MAX_STOPS:
        raise wrong(name, texts, f"must have at most {MAX_STOPS} strings")
    for text in texts:
        if not 0 < len(text) <= longest:
            raise wrong(name, text, f"each string has 1 to {longest} characters")
    return tuple(texts)


def _token_ids(name: str, ids: list[int] | None, limits: Limits) -> tuple[int, ...]:
    check_token_ids(name, ids or [], limits)
    return tuple(ids or ())


def _allowed(request: SamplingFields, limits: Limits) -> tuple[int, ...]:
    if request.allowed_token_ids == []:
        raise wrong("allowed_token_ids", [], "must name at least one token")
    return _token_ids("allowed_token_ids", request.allowed_token_ids, limits)


def _logit_bias(request: SamplingFields, limits: Limits) -> dict[int, float]:
    bias = {}
    for key, value in (request.logit_bias or {}).items():
        # At most ten ASCII digits: int() also reads other digits, spaces and underscores.
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < limits.vocab_size):
            raise wrong("logit_bias", key, f"keys are token ids between 0 and {limits.vocab_size - 1}")
        bias[int(key)] = value
    return bias


def _prompt_logprobs(request: CompletionRequest | ChatRequest) -> int | None:
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs: cannot be streamed", "prompt_logprobs")
    if isinstance(request, CompletionRequest) and request.echo and request.logprobs is not None:
        return max(request.logprobs, request.prompt_logprobs or 0)
    return request.prompt_logprobs
