"""The flags of `pagetide gateway`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import seconds
from pagetide_spec.logs import add_log_flags
from pagetide_spec.names import GATEWAY_PORT
from pagetide_spec.web import base_url

from .proxy.hold import DEFAULT_HOLD
from .replicas.registry import Registry
from .routing.routers import ExpectedTime, RoundRobin, Router
from .serving.app import DEFAULT_STALL_S

ROUTERS: dict[str, Callable[[], Router]] = {"expected-time": ExpectedTime, "round-robin": RoundRobin}


def registry_of(services: Sequence[str], make_router: Callable[[], Router] = ExpectedTime) -> Registry:
    """A registry from `NAME=URL[,URL...]` texts.

    Raises:
        SettingError: a text has another form, or a name comes twice.
    """
    registry = Registry(make_router)
    for text in services:
        name, _, urls = text.partition("=")
        parts = [base_url(u) for u in urls.split(",") if u]
        if not name or not parts or not all(_is_http(u) for u in parts):
            raise SettingError("--service", text, "must be NAME=http://HOST:PORT[,http://HOST:PORT...], without a path")
        if registry.find(name):
            raise SettingError("--service", text, f"{name} is given twice; put all its URLs in one --service")
        registry.put(name, {f"{name}-{i}": url for i, url in enumerate(parts)})
    return registry


def _is_http(url: str) -> bool:
    """Whether it names a host, and nothing behind it: paths are added to it."""
    try:
        parts = urlsplit(url)
        is_host = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        return is_host and not (parts.path or parts.query or parts.fragment)
    except ValueError:
        return False


def at_least_one(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
    return value


at_least_one.__name__ = "int"  # argparse names the type in its errors


def some_seconds(text: str) -> float:
    """Seconds above 0."""
    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be above 0")
    return value


def one_second_or_more(text: str) -> float:
    """Seconds, at least one."""
    value = seconds(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
    return value


def parser() -> Parser:
    """The command's flags."""
    out = Parser(
        "pagetide gateway",
        description="One OpenAI address for many services: those of a Kubernetes cluster, or those named by --service.",
    )
    out.add_argument("--host", default="0.0.0.0", help="address to listen on (default: %(default)s)")
    out.add_argument("--port", type=int, default=GATEWAY_PORT, help="port; 0 takes a free one (default: %(default)s)")
    _add_services(out)
    _add_access(out)
    _add_limits(out)
    add_log_flags(out)
    return out


def _add_services(out: Parser) -> None:
    out.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL[,URL...]",
        help="a model name and its replicas; may be given several times; without it the cluster is watched",
    )
    out.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch InferenceServices in this namespace; may be given several times (default: in all)",
    )
    out.add_argument(
        "--routing",
        choices=list(ROUTERS),
        default="expected-time",
        help="how a replica is chosen (default: %(default)s)",
    )


def _add_access(out: Parser) -> None:
    out.add_argument(
        "--api-keys",
        type=Path,
        metavar="PATH",
        help="the keys of clients: a YAML list, or a folder with a file for each, as a Secret is mounted; "
        "read again when it changes (default: no key required)",
    )
    out.add_argument(
        "--upstream-api-key-file",
        type=Path,
        metavar="FILE",
        help="the key that replicas require; it is sent in place of the client's",
    )


def _add_limits(out: Parser) -> None:
    for flag, kind, default, text in (
        ("--max-body-mib", at_least_one, 32, "largest request body in MiB"),
        ("--hold-requests", at_least_one, DEFAULT_HOLD.requests, "requests that may wait for one service to wake"),
        ("--hold-seconds", some_seconds, DEFAULT_HOLD.seconds, "how long each of them may wait"),
        (
            "--stall-seconds",
            one_second_or_more,
            DEFAULT_STALL_S,
            "a replica that has work and makes no progress for so long is ejected",
        ),
        ("--drain-seconds", seconds, 30, "seconds that running requests get at shutdown"),
    ):
        out.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} (default: %(default)s)")
