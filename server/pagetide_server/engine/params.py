"""Checks of a request against the model that will answer it: whatever passes here, the engine can compute."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pagetide_spec.errors import SettingError

from .messages import Ready, SamplingParams

# OpenAI allows 20 alternatives a token; more is a matter of message size only, and vLLM's users ask for more.
MAX_LOGPROBS = 100
MAX_TEMPERATURE = 1000.0
MAX_STOPS = 64
MAX_SEED = 2**63


def well_typed(params: SamplingParams) -> SamplingParams:
    """The parameters with every value of its declared type: a constructor of msgspec does not look at them.

    A list stands for a tuple, one text for a tuple of one, and None for an empty one, as vLLM's users write `stop`.

    Raises:
        SettingError: names the parameter and the value.
    """
    if type(params) is not SamplingParams:
        raise SettingError("params", params, "must be SamplingParams")
    values = {name: plain_number(getattr(params, name)) for name in params.__struct_fields__}
    for name in ("stop", "bad_words", "stop_token_ids", "logit_bias"):
        if values[name] is None:
            del values[name]
        elif isinstance(values[name], str):
            values[name] = (values[name],)
    try:
        return msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        name, problem = _described(str(error))
        raise SettingError(name, values[name], problem) from None


def plain_number(value: Any) -> Any:
    """A number of another library (numpy's, say) as Python's own; anything else as it is."""
    if isinstance(value, float):
        return float(value)
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


def _described(message: str) -> tuple[str, str]:
    """(parameter, problem) of msgspec's message, such as "Expected `int | null`, got `str` - at `$.seed`"."""
    wanted = re.search(r"Expected `([^`]*)`", message)
    place = re.search(r"(`key` in `)?\$\.(\w+)(\[)?", message)
    assert wanted, message
    assert place, message
    words = " or ".join(_TYPE_WORDS.get(t, t) for t in wanted[1].split(" | "))
    if place[1]:
        return place[2], f"its keys must be {words}"
    return place[2], f"its entries must be {words}" if place[3] else f"must be {words}"


_TYPE_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a mapping", "null": "None",
}  # fmt: skip


def check_params(params: SamplingParams, ready: Ready) -> SamplingParams:
    """The parameters, well typed; refuses what means nothing or what the model cannot fulfil.

    Raises:
        SettingError: names the parameter and the value.
    """
    params = well_typed(params)
    _check_counts(params, ready)
    _check_numbers(params)
    _check_lists(params, ready.vocab_size)
    return params


def check_prompt(token_ids: Sequence[int], ready: Ready, field: str = "prompt") -> None:
    """Refuse a prompt that the model cannot read.

    Raises:
        SettingError: it is empty, too long for the window (with both numbers) or holds an id outside the vocabulary.
    """
    if not token_ids:
        raise SettingError(field, list(token_ids), "is empty; give at least one token")
    if len(token_ids) >= ready.max_model_len:
        raise SettingError(
            field,
            f"{len(token_ids)} tokens",
            f"the model's window is {ready.max_model_len} tokens (max_model_len), the prompt has {len(token_ids)}; "
            "shorten it so that at least one token can be generated",
        )
    check_token_ids(token_ids, ready.vocab_size, field)


def check_token_ids(token_ids: Iterable[int], vocab_size: int, field: str) -> None:
    """Refuse what is not a token id of the model.

    Raises:
        SettingError: names the first wrong id.
    """
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise SettingError(field, token_id, f"is no token id of this model; they go from 0 to {vocab_size - 1}")


def _check_counts(params: SamplingParams, ready: Ready) -> None:
    _range("n", params.n, 1, ready.max_num_seqs)
    if params.best_of is not None:
        _range("best_of", params.best_of, params.n, ready.max_num_seqs)
    if params.max_tokens is not None:
        _range("max_tokens", params.max_tokens, 0, 2**31)
    most = ready.max_model_len if params.max_tokens is None else params.max_tokens
    _range("min_tokens", params.min_tokens, 0, most)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            _range(name, getattr(params, name), 0, min(MAX_LOGPROBS, ready.vocab_size))
    _range("top_k", params.top_k, -1, 2**31)
    if params.seed is not None:
        _range("seed", params.seed, -MAX_SEED, MAX_SEED - 1)


def _check_numbers(params: SamplingParams) -> None:
    _range("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    _range("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0:
        raise SettingError("top_p", params.top_p, "must be above 0")
    _range("min_p", params.min_p, 0.0, 1.0)
    _range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _range("repetition_penalty", params.repetition_penalty, 0.0, 100.0)
    if params.repetition_penalty == 0:
        raise SettingError("repetition_penalty", params.repetition_penalty, "must be above 0")


def _check_lists(params: SamplingParams, vocab_size: int) -> None:
    check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    check_token_ids(params.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    check_token_ids(params.logit_bias, vocab_size, "logit_bias")
    for token_id, bias in params.logit_bias.items():
        _range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
    for word in params.bad_words_token_ids:
        check_token_ids(word, vocab_size, "bad_words")
    for name in ("stop", "bad_words"):
        if len(getattr(params, name)) > MAX_STOPS:
            raise SettingError(name, f"{len(getattr(params, name))} entries", f"may have at most {MAX_STOPS}")
        if "" in getattr(params, name):
            raise SettingError(name, "", "an empty string is in every text; leave it out")


def _range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(name, value, "must be a finite number")
    if not low <= value <= high:
        raise SettingError(name, value, f"must lie between {low} and {high}")
