"""One task for each replica of a registry, so that a hanging one delays no other; a task ends with its replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .registry import Registry, Replica, Service

Work = Callable[[Service, Replica], Coroutine[Any, Any, None]]


async def for_each_replica(registry: Registry, work: Work, tick_s: float) -> None:
    """Run `work` for each replica there is, until cancelled; looks every `tick_s` for those that came or went."""
    tasks: dict[Replica, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            known = {replica: service for service, replica in registry.replicas()}
            for replica in [r for r in tasks if r not in known]:
                tasks.pop(replica).cancel()
            for replica in [r for r in known if r not in tasks]:
                tasks[replica] = group.create_task(work(known[replica], replica))
            await asyncio.sleep(tick_s)
