"""Log lines of both processes: text for people, JSON for collectors."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record carries beyond the standard fields is a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logging(level: str, form: str, source: str = "%(name)s") -> None:
    """Send the process's log, and Python's warnings, to stderr. `source` says in text lines where they come from."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s %(levelname)s {source} %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in ("asyncio", "uvicorn.error", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
