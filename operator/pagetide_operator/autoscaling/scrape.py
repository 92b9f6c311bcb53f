"""Asks servers for their metrics: many at once, none for long. A slow or dead one delays no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import aiohttp

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.names import PATH_METRICS
from pagetide_spec.web import MOST_ANSWER_BYTES, whole_body

from .samples import Sample, parse_sample

TIMEOUT_S = 2.0
# Open requests at one time, over all services.
MOST_AT_ONCE = 32


class Scraper:
    """Must be closed. `clock` gives samples their time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def scrape(self, addresses: Mapping[str, str]) -> dict[str, Sample | str]:
        """Ask each of `addresses` (name -> URL): its figures, or in words why there are none."""
        found = await asyncio.gather(*(self._one(url) for url in addresses.values()))
        return dict(zip(addresses, found, strict=True))

    async def _one(self, url: str) -> Sample | str:
        try:
            async with self._places, asyncio.timeout(TIMEOUT_S):
                text = await self._fetch(url + PATH_METRICS)
            return parse_sample(text, self._clock())
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return describe_failed_call(error)

    async def _fetch(self, url: str) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=MOST_AT_ONCE))
        return await fetched(self._session, url)


async def fetched(session: aiohttp.ClientSession, url: str) -> str:
    """What is at `url`: whoever runs a pod must not send us elsewhere, nor fill our memory.

    Raises:
        ValueError: more than MOST_ANSWER_BYTES; a part of it would pass for the whole.
    """
    async with session.get(url, allow_redirects=False) as reply:
        reply.raise_for_status()
        return (await whole_body(reply.content.iter_any(), MOST_ANSWER_BYTES)).decode("utf-8", "replace")
