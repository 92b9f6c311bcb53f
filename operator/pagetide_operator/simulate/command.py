"""`pagetide simulate`: what would have happened."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.traces import read

from . import scaling_command
from .numbers import MOST, above_zero
from .routing import Fleet, compare

_ROUTING_ONLY = ("--replicas", "--cache-blocks", "--decode-ms")


def main(argv: Sequence[str]) -> int:
    """Replay a trace and print the figures; 2 for a wrong call."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.routing == (args.service is not None):
        parser.error("give either --routing or a service's FILE")
    _refuse_useless(parser, args)
    try:
        found = compare(read(args.trace), _fleet(args)) if args.routing else scaling_command.run(args)
        if args.json:
            _write_json(found, args.json)
        if args.json != "-":
            (_print_routing if args.routing else scaling_command.print_table)(found)
    except PagetideError as error:
        print(f"pagetide simulate: {error}", file=sys.stderr)
        return 2
    return 0


def _refuse_useless(parser: Parser, args: argparse.Namespace) -> None:
    """Exit where a flag is given that the chosen replay does not know: it must not be dropped without a word."""
    others, where = (_ROUTING_ONLY, "--routing") if args.service else (scaling_command.OWN_FLAGS, "a FILE")
    for flag in others:
        name = flag[2:].replace("-", "_")
        if getattr(args, name) != parser.get_default(name):
            parser.error(f"{flag}: is of use only with {where}")


def _fleet(args: argparse.Namespace) -> Fleet:
    return Fleet(args.replicas, args.cache_blocks, args.prefill_rate or Fleet.prefill_rate, args.decode_ms / 1000)


def _write_json(figures: Mapping[str, Any], target: str) -> None:
    text = json.dumps(figures, indent=2)
    if target == "-":
        print(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError("--json", target, error.strerror or str(error)) from None


def _print_routing(figures: Mapping[str, Any]) -> None:
    table = Table("", "hit ratio", "prefill delay p50 s", "p95 s", "load skew")
    against = figures["comparison"]
    for name, row in (("expected time", figures), ("round robin", against["round_robin"])):
        cells = ("hit_ratio", "prefill_delay_p50_s", "prefill_delay_p95_s", "load_skew")
        table.add_row(name, *(f"{row[cell]:.3f}" for cell in cells))
    table.add_row("one pooled cache", f"{against['pooled_cache']['hit_ratio']:.3f}")
    Console().print(table)


def _parser() -> Parser:
    parser = Parser("pagetide simulate", description="Replay a trace of requests against a model of the servers.")
    fleet = {field.name: field.default for field in dataclasses.fields(Fleet)}
    parser.add_argument("--trace", required=True, metavar="FILE", help="JSON lines (Mooncake) or CSV (Azure)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    scaling_command.add_flags(parser)
    group = parser.add_argument_group("the router alone, over a fixed fleet (--prefill-rate as well)")
    group.add_argument("--routing", action="store_true", help="replay only the router")
    whole, blocks = above_zero(int, MOST), "blocks of the trace that a replica's prefix cache holds"
    for flag, kind, default, text in (
        ("--replicas", whole, fleet["replicas"], "number of replicas"),
        ("--cache-blocks", above_zero(int), fleet["cache_blocks"], blocks),
        ("--decode-ms", above_zero(float), 20.0, "milliseconds for each generated token"),
    ):
        group.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} (default: %(default)s)")
    return parser
