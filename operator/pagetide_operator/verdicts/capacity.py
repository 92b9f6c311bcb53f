"""What ready servers can hold, as they say themselves. Asked once for each pod, since it never changes in its life."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import aiohttp

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.names import PATH_METRICS

from ..autoscaling.samples import parse_sample
from ..autoscaling.scrape import fetched
from ..cluster.pods import address_of, is_ready

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]
Name = tuple[str, str]

# A pod that gave no answer is asked again after so many seconds, at the next reconcile of its service.
RETRY_SECONDS = 30.0
WORKERS = 4


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Tokens of KV cache, and sequences at once."""

    kv_tokens: int
    max_concurrency: int


def parsed(text: str) -> Capacity | None:
    """The capacity in a server's metrics, or None where they do not have it."""
    try:
        sample = parse_sample(text, at=0.0)
    except ValueError:
        return None
    return Capacity(int(sample.kv_capacity), int(sample.max_seqs))


def total(pods: Iterable[Object], known: Mapping[str, Capacity]) -> Capacity | None:
    """The capacity of all ready pods together; None where one is not known yet."""
    found = [known.get(p["metadata"]["uid"]) for p in pods if is_ready(p)]
    if None in found:
        return None
    parts = [c for c in found if c is not None]
    return Capacity(sum(c.kv_tokens for c in parts), sum(c.max_concurrency for c in parts))


class Meter:
    """Asks pods for their capacity in the background, and says which service to reconcile again.

    An operator outside of the cluster reaches no pod; then nothing is known, and nothing else suffers.
    """

    def __init__(self, fetch: Callable[[str], Awaitable[str]], found: Callable[[Name], None]) -> None:
        self.known: dict[str, Capacity] = {}
        self._fetch, self._found = fetch, found
        self._tried: dict[str, float] = {}
        self._asked: asyncio.Queue[tuple[Name, Object]] = asyncio.Queue()

    def ask(self, service: Name, pods: Iterable[Object]) -> None:
        """See to it that the capacity of these pods becomes known."""
        now = asyncio.get_running_loop().time()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if is_ready(pod) and uid not in self.known and now - self._tried.get(uid, -RETRY_SECONDS) >= RETRY_SECONDS:
                self._tried[uid] = now
                self._asked.put_nowait((service, pod))

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget the pods that are gone."""
        self.known = {u: c for u, c in self.known.items() if u in uids}
        self._tried = {u: t for u, t in self._tried.items() if u in uids}

    async def run(self) -> None:
        """Ask for ever."""
        await asyncio.gather(*(self._worker() for _ in range(WORKERS)))

    async def _worker(self) -> None:
        while True:
            service, pod = await self._asked.get()
            address = address_of(pod)
            if address is None:
                continue
            try:
                capacity = parsed(await self._fetch(address))
            except Exception as error:  # noqa: BLE001 - whatever a pod says, the operator goes on
                logger.debug("%s/%s: no metrics from %s: %r", *service, address, error)
                continue
            if capacity is not None:
                self.known[pod["metadata"]["uid"]] = capacity
                self._found(service)


async def metrics_of(address: str) -> str:
    """The metrics of one server, asked directly.

    Raises:
        OSError, TimeoutError, ValueError: it gave no (good) answer.
    """
    timeout = aiohttp.ClientTimeout(total=2)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await fetched(session, address + PATH_METRICS)
    except aiohttp.ClientError as error:
        raise OSError(describe_failed_call(error)) from error
