"""Kubernetes' times, to the second, and seconds since the epoch. Pure."""

from __future__ import annotations

import datetime


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes writes them."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(time: str) -> float:
    """Kubernetes' time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(time).timestamp()
