"""One task for each replica of a registry, so that a hanging one delays no other; a task ends with its replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ..replicas.registry import Registry, Replica, Service

log = logging.getLogger(__name__)

# One round of the work; it returns the seconds until the next.
Work = Callable[[Service, Replica], Coroutine[Any, Any, float]]
# After a round that failed.
_PAUSE_S = 1.0


async def for_each_replica(registry: Registry, work: Work, tick_s: float) -> None:
    """Repeat `work` for each replica there is, until cancelled; looks every `tick_s` for those that came or went."""
    tasks: dict[Replica, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            known = {replica: service for service, replica in registry.replicas()}
            for replica in [r for r in tasks if r not in known]:
                tasks.pop(replica).cancel()
            for replica in [r for r in known if r not in tasks]:
                tasks[replica] = group.create_task(_repeat(work, known[replica], replica))
            await asyncio.sleep(tick_s)


async def _repeat(work: Work, service: Service, replica: Replica) -> None:
    while True:
        try:
            pause = await work(service, replica)
        except Exception:  # what goes wrong with one must not end the work on all others
            log.exception("%s: unexpected error at %s", service.model, replica.name)
            pause = _PAUSE_S
        await asyncio.sleep(pause)
