"""What a setting carries beside its name, and how a value given for it is checked."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from typing import Any, Literal, NamedTuple

from .errors import SettingError


class Kind(NamedTuple):
    """What a field takes: values of a type, or one of some choices, and perhaps None."""

    base: type
    choices: tuple[Any, ...] | None
    optional: bool


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a field of EngineConfig carries beside its type and default.

    `low` and `high` are inclusive; `above` is exclusive. `unset` says what an unset field means, for help texts.
    `local` fields belong to one server process (port, key) and are no part of the resource. `reason` says why other
    values are refused, and what to do instead.
    """

    help: str
    group: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    unset: str = ""
    local: bool = False
    reason: str = ""


def setting(default: Any, help: str, group: str, **limits: Any) -> Any:
    """A field of a dataclass with its Setting."""
    return dataclasses.field(default=default, metadata={"setting": Setting(help, group, **limits)})


def setting_of(field: dataclasses.Field[Any]) -> Setting:
    """The metadata of one field of EngineConfig."""
    found = field.metadata["setting"]
    assert isinstance(found, Setting)
    return found


def unknown_hint(name: str, known: typing.Iterable[str]) -> str:
    """What to say about a name that does not exist."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"no such setting; did you mean {near[0]}?" if near else "no such setting"


def kind_of(hint: Any) -> Kind:
    """The meaning of a type hint: a plain type or a Literal, or one of these and None."""
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return Kind(type(choices[0]), choices, optional)
    return Kind(hint, None, optional)


def checked(field: dataclasses.Field[Any], kind: Kind, value: Any) -> Any:
    """`value` in the field's own type.

    Raises:
        SettingError: it has another type, or lies outside the field's limits.
    """
    base, choices, optional = kind
    if value is None and optional:
        return None
    if base is float and type(value) is int:
        value = _as_float(field.name, value)
    if type(value) is not base:
        raise SettingError(field.name, value, f"must be {_TYPE_WORDS[base]}")
    if choices is not None and value not in choices:
        problem = f"must be one of {', '.join(map(str, choices))}"
        raise SettingError(field.name, value, problem + _because(setting_of(field)))
    _check_limits(field.name, value, setting_of(field))
    return value


def _because(limits: Setting) -> str:
    return f"; {limits.reason}" if limits.reason else ""


def _as_float(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise SettingError(name, value, "is too large a number") from None


def _check_limits(name: str, value: Any, limits: Setting) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(name, value, "must be a finite number")
    if limits.low is not None and value < limits.low:
        raise SettingError(name, value, f"must be at least {limits.low:g}")
    if limits.above is not None and value <= limits.above:
        raise SettingError(name, value, f"must be above {limits.above:g}")
    if limits.high is not None and value > limits.high:
        raise SettingError(name, value, f"must be at most {limits.high:g}" + _because(limits))


_TYPE_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
