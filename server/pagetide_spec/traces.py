"""Request traces: one row a request, in the formats of the Mooncake and the Azure data sets."""

from __future__ import annotations

import csv
import dataclasses
import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .errors import SettingError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# One id of `hash_ids` stands for so many tokens of the prompt.
BLOCK_TOKENS = 512
# Beyond these a trace is a mistake (times in another unit, say), and its replay would take for ever.
_MOST_SECONDS = 366 * 24 * 3600.0
_MOST_TOKENS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One request: seconds after the trace's begin, lengths in tokens, and ids of the prompt's blocks, if given."""

    at: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read(path: str) -> list[Row]:
    """The rows of a file, in the order of their times; the first one is at 0.

    Raises:
        SettingError: no such file, or not of one of the two formats.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("--trace", path, f"cannot be read: {error}") from None
    return parse(text, path)


def parse(text: str, source: str) -> list[Row]:
    """The rows of a trace's text; JSON lines (Mooncake) and CSV (Azure) are distinguished by the first character.

    Raises:
        SettingError: names the line that has another form.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise SettingError("--trace", source, "is empty")
    rows = _mooncake(lines, source) if lines[0][1].startswith("{") else _azure(lines, source)
    if not rows:
        raise SettingError("--trace", source, "has no requests")
    rows.sort(key=lambda row: row.at)
    begin = rows[0].at
    if rows[-1].at - begin > _MOST_SECONDS:
        days = (rows[-1].at - begin) / (24 * 3600)
        raise SettingError("--trace", source, f"spans {days:.3g} days, at most 366 are allowed")
    return [dataclasses.replace(row, at=row.at - begin) for row in rows]


def _mooncake(lines: Iterable[tuple[int, str]], source: str) -> list[Row]:
    decode = msgspec.json.Decoder(_Mooncake).decode
    rows = []
    for number, line in lines:
        try:
            found = decode(line)
        except msgspec.MsgspecError as error:
            raise SettingError("--trace", source, f"line {number}: {error}") from None
        rows.append(
            _row(found.timestamp / 1000, found.input_length, found.output_length, found.hash_ids, number, source)
        )
    return rows


def _azure(lines: list[tuple[int, str]], source: str) -> list[Row]:
    head = _cells(*lines[0], source)
    try:
        columns = [head.index(name) for name in AZURE_COLUMNS]
    except ValueError:
        wanted = ",".join(AZURE_COLUMNS)
        raise SettingError("--trace", source, f"must be JSON lines, or CSV with the columns {wanted}") from None
    rows = []
    for number, line in lines[1:]:
        cells = _cells(number, line, source)
        try:
            at, prompt, output = (cells[column] for column in columns)
            rows.append(_row(_seconds(at), int(prompt), int(output), (), number, source))
        except IndexError:
            raise SettingError("--trace", source, f"line {number}: has fewer columns than the first line") from None
        except ValueError as error:
            raise SettingError("--trace", source, f"line {number}: {error}") from None
    return rows


def _cells(number: int, line: str, source: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise SettingError("--trace", source, f"line {number}: {error}") from None


def _seconds(text: str) -> float:
    # The traces of 2023 name no zone and mean UTC, those of 2024 end in +00:00.
    moment = datetime.datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _row(at: float, prompt: int, output: int, hash_ids: tuple[int, ...], number: int, source: str) -> Row:
    if prompt < 1 or output < 0:
        raise SettingError("--trace", source, f"line {number}: lengths must be positive, not {prompt} and {output}")
    if max(prompt, output) > _MOST_TOKENS:
        raise SettingError("--trace", source, f"line {number}: lengths must be at most {_MOST_TOKENS}")
    return Row(at, prompt, max(1, output), hash_ids)
