"""The model of a server from what `pagetide bench --json` measured on a real one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pagetide_spec.errors import SettingError

from .server import ServerModel


def calibrated(model: ServerModel, path: str) -> ServerModel:
    """`model` with the prefill rate and the step's time of a run of bench.

    The prefill rate is the mean prompt over the median time to first token, so run bench with `--concurrency 1` and
    prompts of some length; the step's time is the median gap between two tokens.

    Raises:
        SettingError: no such file, or not of that form.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
        return _from_figures(model, found)
    except OSError as error:
        raise SettingError("--calibrate", path, error.strerror or str(error)) from None
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, ZeroDivisionError):
        raise SettingError("--calibrate", path, "is not what `pagetide bench --json FILE` writes") from None


def _from_figures(model: ServerModel, found: Mapping[str, Any]) -> ServerModel:
    requests = int(found["requests"]["ok"])
    tokens = int(found["tokens"]["input"]) - int(found["tokens"].get("prefix_cache_hits") or 0)
    rate = tokens / requests / float(found["ttft"]["p50"])
    step_s = float(found["inter_token"]["p50"])
    if rate <= 0 or step_s <= 0:
        raise ValueError("no rates")
    return dataclasses.replace(model, prefill_rate=rate, step_s=step_s)
