"""Leader election by a Lease: of several operators one acts, and another takes over soon after it is gone.

A holder that cannot renew stops acting before anybody else may start: it gives up after RENEW_DEADLINE seconds, others
wait for as long as the Lease says by their own clocks since they last saw it change.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..cluster.client import ApiError, Client
from ..cluster.kinds import collection_path

logger = logging.getLogger(__name__)

DURATION = 8.0
RENEW_DEADLINE = 5.0
RETRY = 1.0
NAME = "pagetide-operator"
_API_VERSION = "coordination.k8s.io/v1"


class Observed:
    """When, by our own clock, the Lease last changed: clocks of two machines are never compared."""

    def __init__(self) -> None:
        self._record: Any = None
        self._at = 0.0

    def is_free(self, lease: Mapping[str, Any] | None, me: str, now: float) -> bool:
        """Whether `me` may take the Lease at `now` (seconds of a monotonic clock); notes the Lease."""
        spec = (lease or {}).get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"))
        if record != self._record:
            self._record, self._at = record, now
        holder = spec.get("holderIdentity")
        # The holder's own promise: an operator of another version may have made another one.
        return not holder or holder == me or now - self._at > (spec.get("leaseDurationSeconds") or DURATION)


class Leader:
    """One candidate. `identity` differs between any two processes."""

    def __init__(
        self, client: Client, namespace: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._namespace, self._identity, self._clock = client, namespace, identity, clock
        self._observed = Observed()
        self._renewed = -math.inf
        self._observed_other = False

    async def elected(self) -> None:
        """Return when this process holds the Lease."""
        while True:
            if await self._try(RENEW_DEADLINE):
                break
            await asyncio.sleep(RETRY)
        logger.info("leader: %s", self._identity)

    async def lost(self) -> None:
        """Keep the Lease; return when it is lost."""
        while (left := self._renewed + RENEW_DEADLINE - self._clock()) > 0:
            await asyncio.sleep(min(RETRY, left))
            # An answer that comes after the deadline must not keep us: another one may act by then.
            if not await self._try(RENEW_DEADLINE - (self._clock() - self._renewed)) and self._observed_other:
                return

    def holds(self) -> bool:
        """Whether no other process can have the Lease yet: checked before each write, as this one may have stalled."""
        return self._clock() - self._renewed < RENEW_DEADLINE

    async def release(self) -> None:
        """Give the Lease back, so that the next one need not wait; from here on `holds` says no.

        Raises:
            ApiError: it could not be written; it then runs out by itself.
        """
        self._renewed = -math.inf
        lease = await self._read()
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            await self._write(lease, "")

    async def _try(self, seconds: float = RENEW_DEADLINE) -> bool:
        """Take or renew the Lease within so many seconds; what came of it is not known where that fails."""
        self._observed_other = False
        began = self._clock()
        try:
            async with asyncio.timeout(seconds):
                lease = await self._read()
                if not self._observed.is_free(lease, self._identity, self._clock()):
                    self._observed_other = True
                    return False
                await self._write(lease, self._identity)
        except TimeoutError:
            logger.warning("leader election: no answer within %.1f s", seconds)
            return False
        except ApiError as error:
            if error.code != 409:  # 409: another one was quicker
                logger.warning("leader election: %s", error)
            return False
        self._renewed = began
        return True

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._client.request("GET", f"{self._path}/{NAME}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _write(self, lease: dict[str, Any] | None, holder: str) -> None:
        """Write the Lease over the very state that was read; a 409 says that another client has written."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": int(DURATION), "renewTime": now}
        if lease is None:
            metadata = {"name": NAME, "namespace": self._namespace}
            body = {"apiVersion": _API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._client.request("POST", self._path, body=body)
        else:
            body = {**lease, "spec": {**(lease.get("spec") or {}), **spec}}
            await self._client.request("PUT", f"{self._path}/{NAME}", body=body)

    @property
    def _path(self) -> str:
        return collection_path(_API_VERSION, "leases", self._namespace)
