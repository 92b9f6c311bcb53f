"""The part of `pagetide simulate` that replays scaling: its flags, its run and its table."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagetide_spec.documents import load_documents
from pagetide_spec.errors import SettingError
from pagetide_spec.inference_service import InferenceService
from pagetide_spec.resource import parse
from pagetide_spec.traces import read

from .calibrate import calibrated
from .numbers import MOST, above_zero
from .plot import check_plot, draw
from .scaling import Goals, Rivals, compare_scaling, loaded
from .server import ServerModel

_MODEL_FLAGS = (
    ("--prefill-rate", float, "prefill_rate", "prompt tokens that a replica computes per second"),
    ("--step-ms", float, "step_s", "milliseconds of a step, whatever is in it"),
    ("--sequence-ms", float, "sequence_s", "milliseconds of a step for each sequence that decodes"),
    ("--kv-tokens", int, "kv_tokens", "tokens that a replica's KV cache holds"),
    ("--startup-seconds", float, "startup_s", "from the wish for a replica to its first answer"),
)
# Those that the replay of the router does not know.
OWN_FLAGS = (
    *(flag for flag, *_ in _MODEL_FLAGS if flag != "--prefill-rate"),
    *("--calibrate", "--load", "--ttft-slo", "--inter-token-slo", "--hpa-waiting", "--kpa-open", "--fixed", "--plot"),
)
_COLUMNS = (
    ("TTFT ok", "ttft_attainment", "{:.2%}"),
    ("p95 s", "ttft_p95_s", "{:.2f}"),
    ("inter-token ok", "inter_token_attainment", "{:.2%}"),
    ("replica-hours", "replica_hours", "{:.2f}"),
    ("most", "most_replicas", "{}"),
    ("hit ratio", "hit_ratio", "{:.2f}"),
    ("changes", "changes", "{}"),
    ("turns in 5 min", "most_turns_in_5_min", "{}"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The service, the model of a server, the goals, and what is compared with."""
    parser.add_argument("service", nargs="?", type=Path, metavar="FILE", help="an InferenceService with autoscaling")
    group = parser.add_argument_group("scaling: the model of a server")
    defaults = ServerModel()
    for flag, kind, field, text in _MODEL_FLAGS:
        default = getattr(defaults, field) * (1000 if flag.endswith("-ms") else 1)
        group.add_argument(
            flag, type=above_zero(kind), default=None, metavar="N", help=f"{text} (default: {default:g})"
        )
    group.add_argument("--calibrate", metavar="FILE", help="what `pagetide bench --json FILE` measured on a real one")
    group = parser.add_argument_group("scaling: the load, the goals, and what is compared with")
    whole, number = above_zero(int, MOST), above_zero(float)
    group.add_argument("--load", type=whole, default=1, metavar="N", help="each request so many times (default: 1)")
    group.add_argument(
        "--ttft-slo", type=number, default=Goals.ttft_s, metavar="SECONDS", help="goal (default: %(default)s)"
    )
    group.add_argument(
        "--inter-token-slo",
        type=number,
        default=Goals.inter_token_s,
        metavar="SECONDS",
        help="goal for the mean gap of an answer (default: %(default)s)",
    )
    group.add_argument(
        "--hpa-waiting",
        type=number,
        default=Rivals.hpa_waiting,
        metavar="N",
        help="HPA's target (default: %(default)s)",
    )
    group.add_argument(
        "--kpa-open", type=number, metavar="N", help="KPA's target (default: maxNumSeqs x batchUtilization)"
    )
    group.add_argument(
        "--fixed",
        type=whole,
        action="append",
        default=[],
        metavar="N",
        help="a fixed fleet to compare with; may be repeated (default: the mean and the most that Pagetide used)",
    )
    group.add_argument("--plot", metavar="FILE", help="plot all of it over time as a PNG (needs matplotlib)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Replay; the setting and the figures of each controller.

    Raises:
        SettingError, ResourceError: something given is wrong.
    """
    service = _service(args.service)
    model = _model(args, service)
    if args.plot:
        check_plot()
    rows = loaded(read(args.trace), args.load)
    goals = Goals(args.ttft_slo, args.inter_token_slo)
    rivals = Rivals(args.hpa_waiting, args.kpa_open, tuple(args.fixed))
    found, played = compare_scaling(rows, service, model, goals, rivals, _tell)
    if args.plot:
        draw(played, args.plot)
    setting = {"trace": args.trace, "load": args.load, "model": dataclasses.asdict(model)}
    return {"setting": {**setting, "goals": dataclasses.asdict(goals)}, "controllers": found}


def print_table(found: Mapping[str, Any]) -> None:
    """One row a controller, in columns that a page of text can take as they are."""
    rows = [["", *(title for title, _, _ in _COLUMNS)]]
    for name, row in found["controllers"].items():
        rows.append([name, *(form.format(row[field]) for _, field, form in _COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for head, *cells in rows:
        print("  ".join([head.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))]))


def _tell(name: str) -> None:
    if sys.stderr.isatty():
        print(f"replaying: {name}", file=sys.stderr)


def _service(file: Path) -> InferenceService:
    try:
        documents = load_documents(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("FILE", str(file), f"cannot be read: {error}") from None
    if len(documents) != 1:
        raise SettingError("FILE", str(file), f"has {len(documents)} resources; give a file with one")
    service = parse(documents[0], str(file))
    if service.autoscaling is None:
        raise SettingError("FILE", str(file), "has no spec.autoscaling; add it, at least maxReplicas")
    return service


def _model(args: argparse.Namespace, service: InferenceService) -> ServerModel:
    """The defaults, then what bench measured, then what the service's engine says, then the flags."""
    model = ServerModel()
    if args.calibrate:
        model = calibrated(model, args.calibrate)
    engine = {"max_seqs": service.engine.get("max_num_seqs"), "batched_tokens": _budget(service)}
    model = dataclasses.replace(model, **{name: value for name, value in engine.items() if value})
    given = {}
    for flag, _, field, _ in _MODEL_FLAGS:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None:
            given[field] = value / 1000 if flag.endswith("-ms") else value
    return dataclasses.replace(model, **given)


def _budget(service: InferenceService) -> int | None:
    found = service.engine.get("max_num_batched_tokens")
    return int(found) if found else None
