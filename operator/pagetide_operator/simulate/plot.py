"""Replays over time as a picture. Needs matplotlib, which only this file imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagetide_spec.errors import SettingError, install_hint

from .replay import Played

_BIN_S = 60.0


def check_plot() -> None:
    """Whether pictures can be made here.

    Raises:
        SettingError: matplotlib is not installed.
    """
    _figure_class()


def draw(played: Sequence[Played], path: str) -> None:
    """Load, replicas, waiting requests and time to first token over time, one line a controller, as a PNG.

    Raises:
        SettingError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure_class()(figsize=(11, 12), layout="constrained")
    load, replicas, waiting, late = figure.subplots(4, 1, sharex=True)
    _draw_load(load, played[0])
    for one in played:
        name, times = one.controller.name, [at / 60 for at, *_ in one.timeline]
        end = one.jobs[-1].arrived / 60 if one.jobs else 0.0
        desired = [wanted for _, wanted, _, _ in one.timeline]
        replicas.step([*times, end], [*desired, desired[-1]], where="post", label=name)
        waiting.plot(times, [count for *_, count in one.timeline], label=name)
        late.plot(*_p95(one), label=name)
    for axes, title in ((replicas, "replicas wanted"), (waiting, "waiting"), (late, "p95 time to first token, s")):
        axes.set_ylabel(title)
    waiting.set_yscale("symlog")
    late.set_yscale("log")
    late.set_xlabel("minutes")
    replicas.legend(loc="upper left", ncols=2, fontsize="small")
    try:
        figure.savefig(Path(path), format="png", dpi=110)
    except OSError as error:
        raise SettingError("--plot", path, error.strerror or str(error)) from None


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("--plot", "matplotlib", f"is not installed: {install_hint('plot')}") from None
    return Figure


def _draw_load(axes: Any, played: Played) -> None:
    tokens: dict[int, int] = {}
    for job in played.jobs:
        tokens[int(job.arrived // _BIN_S)] = tokens.get(int(job.arrived // _BIN_S), 0) + job.row.prompt_tokens
    bins = range(max(tokens, default=0) + 1)
    axes.step(list(bins), [tokens.get(b, 0) / _BIN_S for b in bins], where="post", color="black")
    axes.set_ylabel("prompt tokens/s")


def _p95(played: Played) -> tuple[list[float], list[float]]:
    bins: dict[int, list[float]] = {}
    for job in played.jobs:
        bins.setdefault(int(job.arrived // _BIN_S), []).append(job.first - job.arrived)
    return [float(b) for b in bins], [sorted(v)[int(0.95 * (len(v) - 1))] for v in bins.values()]
