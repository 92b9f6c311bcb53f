"""Checks of a request against the model that will answer it: whatever passes here, the engine can compute."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from pagetide_spec.errors import SettingError

from .messages import Ready, SamplingParams, Structure

MAX_STOPS = 64


class Range(NamedTuple):
    """What a number may be: both ends belong to it, but with `above` the low one does not."""

    low: float
    high: float
    above: bool = False


# The numbers of a request, here once: for the library as for the HTTP API, whose document shows them. They are OpenAI's
# where it has the parameter. What depends on the model or on another parameter is checked below.
RANGES = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above=True),
    "top_k": Range(-1, 2**31 - 1),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    # Logits are divided by it, and must stay within float32.
    "repetition_penalty": Range(1e-6, 10),
    "logit_bias": Range(-100, 100),
    "seed": Range(-(2**63), 2**63 - 1),
    "max_tokens": Range(0, 2**31 - 1),
    "logprobs": Range(0, 20),
    "prompt_logprobs": Range(0, 20),
}

NO_UNICODE = "is no Unicode text: it holds half of a surrogate pair"
_TYPES = get_type_hints(SamplingParams)
_KINDS = get_args(get_type_hints(Structure)["kind"])
_STRUCTURE = f"must be a Structure: its kind one of {', '.join(_KINDS)}, its value text"
# Where one text stands for a tuple of one, and None for an empty tuple.
_LENIENT = ("stop", "bad_words", "stop_token_ids")


def well_typed(params: SamplingParams) -> SamplingParams:
    """The parameters with every value of its declared type: a constructor of msgspec does not look at them.

    A list stands for a tuple, one text for a tuple of one, and None for an empty one, as vLLM's users write `stop`.

    Raises:
        SettingError: names the parameter and the value.
    """
    if type(params) is not SamplingParams:
        raise SettingError("params", params, "must be SamplingParams")
    return SamplingParams(**{name: _converted(name, getattr(params, name)) for name in params.__struct_fields__})


def _converted(name: str, given: Any) -> Any:
    """The value of one parameter as its declared type.

    Raises:
        SettingError: it cannot be one.
    """
    value = plain_number(given)
    if name in _LENIENT:
        value = () if value is None else (value,) if isinstance(value, str) else value
    if name == "logit_bias" and value is None:
        value = {}
    if isinstance(value, Structure):  # a constructor has not looked at it
        value = msgspec.structs.asdict(value)
    try:
        found = msgspec.convert(value, _TYPES[name])
    except UnicodeError:
        raise SettingError(name, given, NO_UNICODE) from None
    except msgspec.ValidationError as error:
        raise SettingError(name, given, _STRUCTURE if name == "structure" else _described(str(error))) from None
    for text in found if name in ("stop", "bad_words") else (found.value,) if name == "structure" and found else ():
        check_text(text, name)
    return found


def plain_number(value: Any) -> Any:
    """A number of another library (numpy's, say) as Python's own; anything else as it is."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:  # no whole number; an array has the method, too
        return value


def check_text(text: str, field: str) -> None:
    """Refuse text that cannot be written as UTF-8.

    Raises:
        SettingError: names the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SettingError(field, text, NO_UNICODE) from None


def _described(message: str) -> str:
    """What is wrong, from msgspec's message, such as "Expected `int | null`, got `str` - at `$[...]`"."""
    if "out of range" in message:
        return "must hold in a number of double precision, which ends at 1.8e308"
    wanted = re.search(r"Expected `([^`]*)`", message)
    if wanted is None:
        return "has a wrong type"
    words = " or ".join(_TYPE_WORDS.get(t, t) for t in wanted[1].split(" | "))
    if "`key` in" in message:
        return f"its keys must be {words}"
    return f"its entries must be {words}" if "`$[" in message else f"must be {words}"


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
    for name, allowed in RANGES.items():
        value = getattr(params, name)
        if isinstance(value, int | float):
            _in_range(name, value, allowed)
    _check_counts(params, ready)
    _check_lists(params, ready.vocab_size)
    return params


def check_prompt(token_ids: Sequence[int], ready: Ready, field: str = "prompt", scored_only: bool = False) -> None:
    """Refuse a prompt that the model cannot read; one that gets `prompt_logprobs` only may fill the context.

    Raises:
        SettingError: it is empty, too long for the context (with both numbers) or holds an id outside the vocabulary.
    """
    if not token_ids:
        raise SettingError(field, list(token_ids), "is empty; give at least one token")
    if len(token_ids) + (0 if scored_only else 1) > ready.max_model_len:
        way_out = "shorten it" if scored_only else "shorten it so that at least one token can be generated"
        raise SettingError(
            field,
            f"{len(token_ids)} tokens",
            f"the model's context length is {ready.max_model_len} tokens (max_model_len), the prompt has "
            f"{len(token_ids)}; {way_out}",
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
    most = ready.max_model_len if params.max_tokens is None else params.max_tokens
    _range("min_tokens", params.min_tokens, 0, most)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            _range(name, getattr(params, name), 0, min(RANGES[name].high, ready.vocab_size))


def _check_lists(params: SamplingParams, vocab_size: int) -> None:
    check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    check_token_ids(params.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    check_token_ids(params.logit_bias, vocab_size, "logit_bias")
    for token_id, bias in params.logit_bias.items():
        _in_range(f"logit_bias[{token_id}]", bias, RANGES["logit_bias"])
    for word in params.bad_words_token_ids:
        if not word:
            raise SettingError("bad_words_token_ids", word, "an empty sequence is in every text; leave it out")
        check_token_ids(word, vocab_size, "bad_words")
    for name in ("stop", "bad_words"):
        if len(getattr(params, name)) > MAX_STOPS:
            raise SettingError(name, f"{len(getattr(params, name))} entries", f"may have at most {MAX_STOPS}")
        if "" in getattr(params, name):
            raise SettingError(name, "", "an empty string is in every text; leave it out")


def _in_range(name: str, value: float, allowed: Range) -> None:
    _range(name, value, allowed.low, allowed.high)
    if allowed.above and value == allowed.low:
        raise SettingError(name, value, f"must be above {allowed.low}")


def _range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(name, value, "must be a finite number")
    if not low <= value <= high:
        raise SettingError(name, value, f"must lie between {low} and {high}")
