"""Reads API keys from a file or from the folder that a Secret is mounted at, and notices when they change.

A file is a YAML list of entries. In a folder each file is one key, named by the file: the bare key, or an entry.
An entry: {name, key, maxConcurrent, requestsPerMinute, cacheSalt}; all but the key are optional in a folder.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import yaml

from pagetide_spec.errors import SettingError

from .keys import Key, KeyRing, make_key

log = logging.getLogger(__name__)

FLAG = "--api-keys"
RELOAD_S = 2.0
# Limits and salt as an entry of the file names them -> as `make_key` does.
FIELDS = {"maxConcurrent": "max_concurrent", "requestsPerMinute": "requests_per_minute", "cacheSalt": "cache_salt"}
_LEAST_LENGTH = 8


def read_keys(path: Path) -> list[Key]:
    """All keys there.

    Raises:
        SettingError: unreadable, of another form, or without any key; never shows a key.
    """
    try:
        keys = _from_folder(path) if path.is_dir() else _from_text(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(FLAG, str(path), f"cannot be read: {getattr(error, 'strerror', '') or error}") from None
    if not keys:
        raise SettingError(FLAG, str(path), "has no keys; every client would be shut out")
    for what in ("name", "digest"):
        if len({getattr(key, what) for key in keys}) < len(keys):
            raise SettingError(FLAG, str(path), f"two entries have the same {'name' if what == 'name' else 'key'}")
    return keys


def _from_folder(folder: Path) -> list[Key]:
    # A Secret's mount has links to its files, and folders that begin with two dots.
    files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    return [_from_file(file) for file in files]


def _from_file(file: Path) -> Key:
    text = file.read_text(encoding="utf-8-sig").strip()  # some editors begin a file with a byte order mark
    entry = _yaml(text, file) if text.startswith("{") or "\n" in text or text.startswith("key:") else {"key": text}
    return _entry({"name": file.name, **entry} if isinstance(entry, dict) else entry, str(file))


def _from_text(text: str, file: Path) -> list[Key]:
    entries = _yaml(text, file)
    if not isinstance(entries, list):
        raise SettingError(FLAG, str(file), "must be a YAML list of {name, key, ...}")
    return [_entry(entry, f"{file}, entry {number}") for number, entry in enumerate(entries, 1)]


def _yaml(text: str, file: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no such day, or number
        # The error's own text quotes the file, keys included.
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", at line {line + 1}"
        raise SettingError(FLAG, str(file), f"is not YAML{where}") from None


def _entry(entry: Any, where: str) -> Key:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not isinstance(entry.get("key"), str):
        raise SettingError(FLAG, where, "must have a `name` and a `key`, both text")
    if unknown := set(entry) - {"name", "key", *FIELDS}:
        raise SettingError(FLAG, where, f"has unknown fields: {', '.join(map(str, sorted(unknown, key=str)))}")
    if len(entry["key"]) < _LEAST_LENGTH or any(c.isspace() for c in entry["key"]):
        raise SettingError(FLAG, where, f"`key` must have at least {_LEAST_LENGTH} characters and no space")
    if any(not text.isprintable() for text in (entry["name"], entry["key"])):  # half a character is none
        raise SettingError(FLAG, where, "`name` and `key` must have characters only that can be printed")
    limits = {ours: entry[theirs] for theirs, ours in FIELDS.items() if theirs in entry}
    _check(limits, where)
    return make_key(entry["name"], entry["key"], **limits)


def _check(limits: dict[str, Any], where: str) -> None:
    most, rate, salt = (limits.get(name) for name in ("max_concurrent", "requests_per_minute", "cache_salt"))
    if most is not None and (type(most) is not int or most < 1):
        raise SettingError(FLAG, where, "maxConcurrent must be a whole number above 0")
    if rate is not None and (type(rate) not in (int, float) or not 0 < rate < float("inf")):
        raise SettingError(FLAG, where, "requestsPerMinute must be a number above 0")
    if salt is not None and not isinstance(salt, str):
        raise SettingError(FLAG, where, "cacheSalt must be text")


async def keep_fresh(ring: KeyRing, path: Path, before: list[Key]) -> None:
    """Take over changes until cancelled; keys that cannot be read leave those of before in force."""
    problem = ""
    while True:
        await asyncio.sleep(RELOAD_S)
        try:
            keys = await asyncio.to_thread(read_keys, path)
        except Exception as error:  # noqa: BLE001 - no file, whatever is in it, may end what is under way
            found = str(error) if isinstance(error, SettingError) else type(error).__name__  # its text might show a key
            if found != problem:
                problem = found
                log.error("the API keys stay as they were: %s", found)
            continue
        problem = ""
        if keys != before:
            log.info("%d API keys in force", len(keys))
            ring.replace(keys)
            before = keys
