"""Log lines of all programs: text for people, JSON for collectors."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

import msgspec

# The handler of a program's log.
_NAME = "pagetide"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record carries beyond the standard fields is a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        line: dict[str, Any] = {
            **extra,
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, as a client may send it
            return json.dumps(line, default=str)


def in_form(text: str, form: str, level: int = logging.INFO) -> str:
    """What is printed whatever the log level, as a line of the log's form: text stays as it is."""
    if form != "json":
        return text
    fields = {"name": "pagetide", "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
    return JsonFormatter().format(logging.makeLogRecord(fields))


def add_log_flags(parser: argparse.ArgumentParser, level: str = "info") -> None:
    """The flags of a program whose log has these forms; `level` is the default."""
    levels = ["debug", "info", "warning", "error"]
    parser.add_argument("--log-level", choices=levels, default=level, help="least severe level (default: %(default)s)")
    parser.add_argument(
        "--log-format", choices=["text", "json"], default="text", help="form of log lines (default: %(default)s)"
    )


def set_up_logging(level: str, form: str, source: str = "%(name)s") -> None:
    """Send the process's log, and Python's warnings, to stderr. `source` says in text lines where they come from."""
    handler = _handler(form, source)
    handler.set_name(_NAME)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # The hub's client logs each of its requests, by httpx or httpx2 as its version has it.
    for noisy in ("asyncio", "uvicorn.error", "httpx", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def is_set_up() -> bool:
    """Whether this process's log is `set_up_logging`'s, and not that of a program that uses the library."""
    return any(handler.name == _NAME for handler in logging.root.handlers)


def attach_log(name: str, level: str, form: str) -> None:
    """Log what a library's logger `name` says at a level; to stderr if the program has set up no logging of its own."""
    logger = logging.getLogger(name)
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        logger.addHandler(_handler(form, "%(name)s"))


def stderr_handler(form: str, text: str) -> logging.Handler:
    """A handler that writes to stderr; `text` is the format of lines that are no JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    return handler


def _handler(form: str, source: str) -> logging.Handler:
    return stderr_handler(form, f"%(asctime)s %(levelname)s {source} %(message)s")
