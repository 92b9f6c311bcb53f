"""`pagetide top`: watch a server, a gateway or a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

import aiohttp
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import SettingError, install_hint
from pagetide_spec.flags import seconds
from pagetide_spec.web import base_url

from .screen import Screen
from .sources import NoAnswer, NotOurs, Source, Web, source_at

LEAST_INTERVAL_S = 0.2
# Where there is no terminal, nothing need be left out for want of width.
WIDTH_OF_A_FILE = 200


def main(argv: Sequence[str]) -> int:
    """Watch until Ctrl-C; exits with 0, 1 where the target does not answer, 2 for a wrong call or URL."""
    args = parser().parse_args(argv)
    try:
        check(args)
        return asyncio.run(_watch(args, console()))
    except (SettingError, NotOurs) as error:
        print(f"pagetide top: {error}", file=sys.stderr)
        return 2
    except NoAnswer as error:
        print(f"pagetide top: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def parser() -> Parser:
    """The command's flags."""
    out = Parser("pagetide top", description="A live view of a server, a gateway or, without a URL, a cluster.")
    out.add_argument("url", nargs="?", default="", help="of a server or a gateway, such as http://127.0.0.1:8080")
    out.add_argument("--namespace", "-n", help="of the cluster; all namespaces unless given")
    out.add_argument("--interval", type=seconds, default=2.0, help="seconds between two scrapes (default: %(default)s)")
    out.add_argument("--once", action="store_true", help="print once and exit, as without a terminal")
    out.add_argument("--api-key", default=os.environ.get("PAGETIDE_API_KEY", ""),
                     help="of a gateway that requires one (default: PAGETIDE_API_KEY)")  # fmt: skip
    return out


def check(args: argparse.Namespace) -> None:
    """Raise SettingError for what cannot be."""
    if args.url and not _is_http(args.url):
        raise SettingError("URL", args.url, "must be http://HOST:PORT")
    if args.url and args.namespace:
        raise SettingError("--namespace", args.namespace, "is for a cluster; leave the URL out, or this")
    if args.interval < LEAST_INTERVAL_S:
        raise SettingError("--interval", args.interval, f"must be at least {LEAST_INTERVAL_S:g}")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets of an address, or a port that is none
        return False


def console() -> Console:
    """Where to draw: the terminal, or a file."""
    found = Console()
    return found if found.is_terminal or os.environ.get("COLUMNS") else Console(width=WIDTH_OF_A_FILE)


async def _watch(args: argparse.Namespace, console: Console) -> int:
    source = await _source(args)
    try:
        if args.once or not console.is_terminal or console.is_dumb_terminal:
            await source.frame()
            await asyncio.sleep(args.interval)
            console.print(Screen(await source.frame()))
        else:
            await _live(source, args.interval, console)
    finally:
        await source.close()
    return 0


async def _live(source: Source, interval_s: float, console: Console) -> None:
    """Draw for ever; one that does not answer for a while is waited for."""
    shown: Screen | Text
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = Screen(await source.frame())
            except (NoAnswer, NotOurs) as error:
                shown = Text(f"{error}; waiting for it", "red")
            live.update(shown, refresh=True)
            await asyncio.sleep(interval_s)


async def _source(args: argparse.Namespace) -> Source:
    if args.url:
        session = aiohttp.ClientSession()
        try:
            return await source_at(Web(base_url(args.url), session, args.api_key))
        except BaseException:
            await session.close()
            raise
    try:
        from .cluster import ClusterSource
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("pagetide"):
            raise
        raise NoAnswer(f"a cluster needs the extra: {install_hint('operator')}; or name a URL") from None
    return ClusterSource(args.namespace)
