"""What a model's folder says of its tokenizer beside tokenizer.json, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pagetide_spec.errors import SettingError

from ..checkpoint.files import read_json

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Token(msgspec.Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Template(msgspec.Struct):
    name: str
    template: str


# The types of what is used of the files; all else in them may be anything.
_Known = msgspec.defstruct(
    "_Known",
    [
        *((name, str | _Token | None, None) for name in NAMED_TOKENS),
        ("added_tokens_decoder", dict[int, _Token] | None, None),
        ("add_bos_token", bool | None, None),
        ("add_eos_token", bool | None, None),
    ],
)
_Templates = msgspec.defstruct("_Templates", [("chat_template", str | dict[str, str] | None, None)])
_ListedTemplates = msgspec.defstruct("_ListedTemplates", [("chat_template", list[_Template])])


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with older files' special tokens and the chat templates that lie beside it.

    Raises:
        SettingError: a file cannot be read or has a wrong value; names the folder and the file.
    """
    older, own, beside = (
        _checked(folder / name) for name in ("special_tokens_map.json", "tokenizer_config.json", "chat_template.json")
    )
    settings = older | own
    found = templates(beside.get("chat_template") or settings.get("chat_template"))
    single = folder / "chat_template.jinja"
    if single.is_file():
        found["default"] = _read(single)
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return settings | {"chat_template": found | {path.stem: _read(path) for path in more}}


def templates(found: Any) -> dict[str, str]:
    """Chat templates by name; files hold one text, or a list of named ones."""
    if not found:
        return {}
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, Mapping):
        return dict(found)
    return {entry["name"]: entry["template"] for entry in found}


def _checked(path: Path) -> dict[str, Any]:
    content = read_json(path, str(path.parent), missing_ok=True)
    listed = isinstance(content.get("chat_template"), list)
    try:
        msgspec.convert(content, _Known, str_keys=True, strict=True)
        msgspec.convert(content, _ListedTemplates if listed else _Templates)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise SettingError("model", str(path.parent), f"{path.name} has a wrong value: {error}") from error
    return content


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingError("model", str(path.parent), f"{path.name} cannot be read: {error}") from error
