"""The figures of a run as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from .figures import Distribution, Summary

LATENCY_TITLES = {"ttft": "time to first token", "inter_token": "inter-token", "e2e": "end to end", "queue": "queue"}
# A generator that sends later than this measures itself.
LATE_SECONDS = 0.02


def table(summary: Summary, is_open_loop: bool) -> str:
    """Everything in lines of text."""
    lines = [*_counts(summary), "", f"{'seconds':22}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    for name, title in LATENCY_TITLES.items():
        found = summary.latencies[name]
        if found is not None:
            lines.append(f"{title:22}" + "".join(f"{_seconds(getattr(found, c)):>10}" for c in _COLUMNS))
        else:
            lines.append(f"{title:22}" + f"{'not reported by the server' if name == 'queue' else '-':>32}")
    return "\n".join([*lines, *_notes(summary, is_open_loop)])


_COLUMNS = ("mean", "p50", "p90", "p99", "max")


def _counts(summary: Summary) -> list[str]:
    rates, failed = summary.rates, sum(summary.failed.values())
    cut = f", {summary.cut_off} cut off" if summary.cut_off else ""
    rows = [
        ("requests", f"{summary.ok} ok, {failed} failed{cut} in {summary.seconds:.2f} s"),
        ("requests/s", f"{rates['requests_per_s']:,.2f}"),
        ("input tokens/s", f"{rates['input_tokens_per_s']:,.1f}    ({summary.prompt_tokens:,} tokens)"),
        ("output tokens/s", f"{rates['output_tokens_per_s']:,.1f}    ({summary.output_tokens:,} tokens)"),
    ]
    if summary.cached_tokens is not None:
        share = summary.cached_tokens / max(1, summary.prompt_tokens)
        rows.append(("prefix-cache hits", f"{summary.cached_tokens:,} input tokens ({share:.1%})"))
    rows += [(f"  failed: {reason}", _failure(summary, reason)) for reason in summary.failed]
    return [f"{name:21} {text}" for name, text in rows]


def _failure(summary: Summary, reason: str) -> str:
    detail = " ".join(summary.details.get(reason, "").split())
    return f"{summary.failed[reason]}" + (f"    ({detail[:150]})" if detail else "")


def _notes(summary: Summary, is_open_loop: bool) -> list[str]:
    notes = []
    if summary.ok and not summary.has_usage:
        notes.append("note: the server reported no usage: each event counts as one token, inputs as they were planned")
    lag = summary.send_lag
    if is_open_loop and lag is not None and lag.p99 > LATE_SECONDS:
        notes.append(
            f"note: requests were sent late (p99 {lag.p99:.3f} s, max {lag.max:.3f} s); latencies include that"
        )
    return ["", *notes] if notes else []


def _seconds(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 100 else f"{value:.1f}"


def document(summary: Summary, setting: dict[str, Any]) -> dict[str, Any]:
    """The same figures for programs; times in seconds. `setting`: what was asked for."""
    return {
        "setting": setting,
        "seconds": summary.seconds,
        "requests": {
            "ok": summary.ok,
            "failed": summary.failed,
            "failure_details": summary.details,
            "cut_off": summary.cut_off,
            "error_rate": summary.error_rate,
        },
        "tokens": {
            "input": summary.prompt_tokens,
            "output": summary.output_tokens,
            "prefix_cache_hits": summary.cached_tokens,
            "from_usage": summary.has_usage,
        },
        **summary.rates,
        **{name: _fields(found) for name, found in summary.latencies.items()},
        "send_lag": _fields(summary.send_lag),
    }


def _fields(found: Distribution | None) -> dict[str, float] | None:
    return dataclasses.asdict(found) if found is not None else None
