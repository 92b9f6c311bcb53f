"""EngineConfig as command-line flags and environment variables.

A flag wins over an environment variable, which wins over the default. A wrong value is a SettingError under the name
by which it was given.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .config import EngineConfig, type_of
from .errors import SettingError
from .names import ENV_PREFIX
from .setting import setting_of, unknown_hint

# Fields of EngineConfig that a resource gives elsewhere than in `spec.engine`.
_PLACES = {
    "model": "spec.model.uri",
    "served_model_name": "spec.model.servedName",
    "revision": "spec.model.revision",
    "api_key": "spec.apiKeySecretRef",
    "api_key_file": "spec.apiKeySecretRef",
}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def flag_of(name: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """`max_num_seqs` -> `PAGETIDE_MAX_NUM_SEQS`."""
    return ENV_PREFIX + name.upper()


def in_flags(message: str) -> str:
    """A message of `serve` or `plan`, with settings spelt as flags: "max_model_len: 9" -> "--max-model-len: 9".

    Of a name without an underscore only one that leads the message can be told from an ordinary word.
    """
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    head, colon, rest = message.partition(": ")
    if head in names:
        message = ("MODEL" if head == "model" else flag_of(head)) + colon + rest
    alone = "|".join(name for name in names if "_" in name)
    # Not within a path, a value or a longer name.
    return re.sub(rf"(?<![\w/.'\"-])({alone})(?![\w/'\"-]|\.\w)", lambda found: flag_of(found[0]), message)


def camel_of(name: str) -> str:
    """`max_num_seqs` -> `maxNumSeqs`."""
    head, *rest = name.split("_")
    return head + "".join(w.capitalize() for w in rest)


def parse_text(field: dataclasses.Field[Any], text: str) -> Any:
    """A field's value from the text of a flag or an environment variable.

    Raises:
        SettingError: the text is not of the field's type.
    """
    base, _, _ = type_of(field)
    if base is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise SettingError(field.name, text, "must be true or false")
    if base is str:
        return text
    try:
        return base(text)
    except ValueError:
        word = "a whole number" if base is int else "a number"
        raise SettingError(field.name, text, f"must be {word}") from None


def seconds(text: str, least: float = 0.0) -> float:
    """For argparse: a finite number of seconds, at least so many.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, at least {least:g}")
    return value


def add_flags(parser: argparse.ArgumentParser, helped: Collection[str] | None = None) -> None:
    """Add one flag for each field but `model`, grouped, with default and limits in the help text.

    The help has those of `helped`, or all.
    """
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(EngineConfig):
        if field.name == "model":
            continue
        setting = setting_of(field)
        group = groups.get(setting.group) or groups.setdefault(setting.group, parser.add_argument_group(setting.group))
        base, choices, _ = type_of(field)
        text = f"{setting.help} (default: {describe_default(field)})".replace("%", "%%")
        if helped is not None and field.name not in helped:
            text = argparse.SUPPRESS
        names = [flag_of(field.name)]
        if base is bool:
            names.append(flag_of("no_" + field.name))
            group.add_argument(*names, dest=field.name, action=_BoolFlag, help=text)
        else:
            shown = "{" + ",".join(map(str, choices)) + "}" if choices else base.__name__.upper()
            group.add_argument(*names, dest=field.name, default=None, metavar=shown, help=text)


class _BoolFlag(argparse.Action):
    """`--name`, `--no-name` and `--name=false`."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs="?", default=None, help=help, metavar="BOOL")

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        text = "true" if values is None else str(values)
        if option_string and option_string.startswith("--no-") and option_string != flag_of(self.dest):
            text = "false" if text.lower() in _TRUE else "true"
        setattr(namespace, self.dest, text)


def describe_default(field: dataclasses.Field[Any]) -> str:
    """The default as help texts and the reference table show it."""
    setting = setting_of(field)
    if field.default is None or field.default == "":
        return setting.unset or "none"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def config_from(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> EngineConfig:
    """EngineConfig from parsed flags (field name -> text or None) over environment variables.

    Raises:
        SettingError: under the flag's or the variable's name.
    """
    fields = {f.name: f for f in dataclasses.fields(EngineConfig)}
    values: dict[str, Any] = {}
    shown_as: dict[str, str] = {}
    for name, field in fields.items():
        given = _given(name, flags, environ)
        if given is None:
            continue
        shown_as[name], text = given
        try:
            values[name] = parse_text(field, text)
        except SettingError as error:
            raise error.renamed(shown_as[name]) from None
    try:
        return EngineConfig(**values)
    except SettingError as error:
        raise error.renamed(shown_as.get(error.field, error.field)) from None


def misspelt(environ: Mapping[str, str]) -> list[SettingError]:
    """Variables that look like a setting and are none: a hint, for other programs may use the prefix as well."""
    known = {env_of(f.name) for f in dataclasses.fields(EngineConfig)}
    found = []
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            found += [SettingError(name, environ[name], f"no such setting; did you mean {n}?") for n in near]
    return found


def _given(name: str, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[str, str] | None:
    text = flags.get(name)
    if text is not None:
        return ("MODEL" if name == "model" else flag_of(name)), text
    if env_of(name) in environ:
        return env_of(name), environ[env_of(name)]
    return None


def camel_to_snake(values: Mapping[str, Any]) -> dict[str, Any]:
    """The resource's `spec.engine` as EngineConfig field names.

    Raises:
        SettingError: a name that no field has, or that belongs to the process and not to the resource.
    """
    known = {camel_of(f.name): f.name for f in resource_fields()}
    out = {}
    for name, value in values.items():
        if name not in known:
            raise SettingError(f"spec.engine.{name}", value, field_hint(f"spec.engine.{name}", known))
        out[known[name]] = value
    return out


def field_hint(path: str, known: Iterable[str]) -> str:
    """What to say about a field that a resource does not have at `path`; `known`: the names that it has there."""
    for field in dataclasses.fields(EngineConfig):
        if path == f"spec.engine.{camel_of(field.name)}" and field not in resource_fields():
            place = _PLACES.get(field.name)
            return f"is given as {place}" if place else "belongs to one server process, not to a resource: leave it out"
    return unknown_hint(path.rpartition(".")[2], known)


def resource_fields() -> list[dataclasses.Field[Any]]:
    """The fields that `spec.engine` may hold: all that belong neither to the process nor to `spec.model`."""
    return [f for f in dataclasses.fields(EngineConfig) if not setting_of(f).local and f.name not in _PLACES]


def to_arguments(config: Mapping[str, Any]) -> list[str]:
    """`{max_num_seqs: 8}` -> `["--max-num-seqs=8"]`, in the order of the fields: how a pod or process is started."""
    out = []
    for field in dataclasses.fields(EngineConfig):
        value = config.get(field.name)
        if value is not None and field.name != "model":
            text = str(value).lower() if isinstance(value, bool) else str(value)
            out.append(f"{flag_of(field.name)}={text}")
    return out
