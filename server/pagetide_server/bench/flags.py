"""The command line of `pagetide bench`, checked as far as that goes without the server."""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import env_of
from pagetide_spec.web import base_url

from .connection import split_url
from .shapes import Lengths, Mix, lengths
from .slo import Slo, slo

KEY_VARIABLES = (env_of("api_key"), "OPENAI_API_KEY")
DEFAULT_REQUESTS, DEFAULT_CONCURRENCY = 100, 8
EPILOG = """\
The load is a closed loop (--concurrency), unless --rate or --trace makes it an open one, in which requests come at
their times whatever became of those before, and every latency counts from when a request was meant to be sent.

exit codes:
  0    measured, and every --slo was kept
  1    an --slo was not kept (one line each), no request succeeded, or the server cannot be reached, or not any more
  2    a flag is wrong
  130  Ctrl-C; what was measured so far is printed
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is to do."""

    url: str
    model: str | None
    api_key: str | None = dataclasses.field(repr=False)
    chat: bool
    concurrency: int | None
    rate: float | None
    trace: str | None
    speed: float
    requests: int | None
    duration: float | None
    warmup: int
    mix: Mix
    prompts: str
    temperature: float
    ignore_eos: bool
    seed: int
    timeout: float
    slos: tuple[Slo, ...]
    json: str | None

    @property
    def is_open_loop(self) -> bool:
        """Whether requests come at times of their own."""
        return self.rate is not None or self.trace is not None

    @property
    def path(self) -> str:
        """Of the requests."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def shown(self) -> dict[str, Any]:
        """For the report: everything but the key."""
        known = dataclasses.asdict(self)
        return {name: value for name, value in known.items() if name not in ("api_key", "json", "slos")}


def parse(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a command line.

    Raises:
        SettingError: a wrong URL, or two flags contradict each other.
        SystemExit: 2 after one line about a wrong flag; 0 after --help.
    """
    given = _parser().parse_args(argv)
    split_url(given.url)  # so that a wrong one is shown as it was typed
    url = base_url(given.url)
    key = given.api_key or next((env[name] for name in KEY_VARIABLES if env.get(name)), None)
    if given.rate is not None and given.trace is not None:
        raise SettingError("--rate", given.rate, "cannot be given together with --trace, which has its own times")
    if given.trace is None and given.speed != 1:
        raise SettingError("--speed", given.speed, "is of use only with --trace")
    if given.chat and given.prompts == "ids":
        raise SettingError("--prompts", "ids", "a chat's messages are text")
    mix = Mix(given.input_tokens, given.output_tokens, given.prefix_tokens, given.prefixes)
    requests, concurrency = given.requests, given.concurrency
    if requests is None and given.duration is None and given.trace is None:
        requests = DEFAULT_REQUESTS
    if concurrency is None and given.rate is None and given.trace is None:
        concurrency = DEFAULT_CONCURRENCY
    changed: dict[str, Any] = {"url": url, "api_key": key, "concurrency": concurrency, "requests": requests, "mix": mix}
    changed["slos"] = tuple(given.slo)
    changed["seed"] = secrets.randbelow(2**31) if given.seed is None else given.seed
    same = {f.name: getattr(given, f.name) for f in dataclasses.fields(Settings) if f.name not in changed}
    return Settings(**same, **changed)


def _number(kind: Callable[[str], float], least: float, *, above: bool = False) -> Callable[[str], Any]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a {'whole ' if kind is int else ''}number") from None
        # Written so that NaN does not pass.
        if not (value > least if above else value >= least) or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text}: must be {'more than' if above else 'at least'} {least:g}")
        return value

    return convert


def _lengths(text: str) -> Lengths:
    try:
        return lengths(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of tokens, or LOW:HIGH") from None


def _slo(text: str) -> Slo:
    try:
        return slo(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


_count, _natural, _positive = _number(int, 1), _number(int, 0), _number(float, 0, above=True)


def _parser() -> Parser:
    parser = Parser("pagetide bench", description="Load an OpenAI-compatible server and measure it.", epilog=EPILOG)
    add = parser.add_argument
    add("url", metavar="URL", help="of the server, as http://HOST:PORT")
    add("--model", metavar="NAME", help="model to request (default: the only one the server has)")
    add("--api-key", metavar="KEY", help=f"(default: {' or '.join('$' + name for name in KEY_VARIABLES)})")
    add("--chat", action="store_true", help="/v1/chat/completions instead of /v1/completions")
    _add_load(parser)
    _add_requests(parser)
    _add_result(parser)
    return parser


def _add_load(parser: Parser) -> None:
    add = parser.add_argument_group("load").add_argument
    add(
        "--concurrency",
        type=_count,
        metavar="N",
        help=f"closed loop: so many open requests (default: {DEFAULT_CONCURRENCY}); open loop: never more than that",
    )
    add("--rate", type=_positive, metavar="R", help="open loop: Poisson arrivals, so many per second")
    add("--trace", metavar="FILE", help="open loop: times and lengths of a trace (Mooncake JSONL or Azure CSV)")
    add("--speed", type=_positive, default=1.0, metavar="X", help="play the trace so many times as fast (default: 1)")
    add(
        "--requests",
        type=_count,
        metavar="N",
        help=f"stop after so many (default: {DEFAULT_REQUESTS} without --duration; the whole trace)",
    )
    add(
        "--duration",
        type=_positive,
        metavar="S",
        help="begin no request after so many seconds; those begun are finished",
    )
    add("--warmup", type=_natural, default=0, metavar="N", help="requests before the run, not measured (default: 0)")
    add("--timeout", type=_positive, default=600.0, metavar="S", help="for one request (default: 600)")


def _add_requests(parser: Parser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add("--input-tokens", type=_lengths, default=Lengths(256, 256), metavar="N|LOW:HIGH", help="(default: 256)")
    add("--output-tokens", type=_lengths, default=Lengths(128, 128), metavar="N|LOW:HIGH", help="(default: 128)")
    add(
        "--prefix-tokens",
        type=_natural,
        default=0,
        metavar="N",
        help="before the input: a shared prefix (default: 0)",
    )
    add("--prefixes", type=_count, default=1, metavar="N", help="so many different prefixes (default: 1)")
    add(
        "--prompts",
        choices=("auto", "ids", "text"),
        default="auto",
        help="token ids where the server reports its vocabulary, else text (default: auto)",
    )
    add("--temperature", type=_number(float, 0), default=0.0, metavar="T", help="(default: 0)")
    add(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="let answers end early; needed for servers that do not know ignore_eos",
    )
    add(
        "--seed",
        type=_natural,
        metavar="N",
        help="of arrivals, lengths and prompts (default: a new one, so that no prompt is in a cache yet)",
    )


def _add_result(parser: Parser) -> None:
    add = parser.add_argument_group("result").add_argument
    add(
        "--slo",
        type=_slo,
        action="append",
        default=[],
        metavar="NAME=LIMIT",
        help="exit 1 unless kept; several: ttft_p99=0.5 inter_token_p50=0.05 output_tokens_per_s=100 error_rate=0",
    )
    add("--json", metavar="FILE", help="write the figures there; - is stdout, and the table goes to stderr")
