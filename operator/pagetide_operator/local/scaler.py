"""The operator's autoscaler over processes: the same steps, carried out by the supervisor."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from pagetide_spec.inference_service import Autoscaling

from ..autoscaling.autoscaler import Autoscaler, Fleet, Replica, Step
from ..autoscaling.explain import active_condition, inputs_of, limited_condition, sentence, status_after
from ..autoscaling.policy import remembered
from ..autoscaling.samples import Sample
from ..autoscaling.scrape import Scraper
from ..autoscaling.windows import SCRAPE_S
from .service import LocalService
from .slot import Slot
from .supervisor import Supervisor

log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Scaled:
    """One service, its autoscaler, when the gateway last asked for a replica, and the last step."""

    service: LocalService
    scaling: Autoscaling
    brain: Autoscaler
    wake: float | None = None
    step: Step | None = None
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class LocalScaler:
    """Scales the services that have `spec.autoscaling`, all services together to at most `max_replicas` processes.

    `tell` gets one line for each change.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        max_replicas: int,
        tell: Callable[[str], None],
        interval_s: float = SCRAPE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._supervisor, self._most, self._tell = supervisor, max_replicas, tell
        self._interval_s, self._clock = interval_s, clock
        self._scraper = Scraper(clock)
        self._known = {
            s.name: _Scaled(s, s.autoscaling, Autoscaler(remembered((), s.replicas, clock())))
            for s in supervisor.services.values()
            if s.autoscaling is not None
        }
        for one in self._known.values():
            supervisor.set_waker(one.service, self._waker(one))

    async def run(self) -> None:
        """Round after round, until cancelled."""
        try:
            while True:
                await asyncio.gather(*map(self._guarded, self._known.values()))
                await asyncio.sleep(self._interval_s)
        finally:
            await self._scraper.close()

    def describe(self, name: str) -> dict[str, Any] | None:
        """What `/status` reports of a service's scaling, with the names of the resource's status."""
        one = self._known.get(name)
        if one is None or one.step is None:
            return None
        decision = one.step.decision
        pairs = (("ScalingActive", active_condition(decision)), ("ScalingLimited", limited_condition(decision)))
        conditions = [
            {"type": kind, "status": str(holds), "reason": reason, "message": message}
            for kind, (holds, reason, message) in pairs
        ]
        return {"conditions": conditions, "autoscaling": {**one.told, "inputs": inputs_of(decision)}}

    def _waker(self, one: _Scaled) -> Callable[[], Any]:
        async def wake() -> None:
            one.wake = self._clock()
            await self._guarded(one)

        return wake

    async def _guarded(self, one: _Scaled) -> None:
        try:
            async with one.lock:
                await self._scale(one)
        except Exception:  # one service's trouble is not that of the others
            log.exception("%s: not scaled: unexpected error", one.service.name)

    async def _scale(self, one: _Scaled) -> None:
        slots = {self._life(s): s for s in self._supervisor.slots_of(one.service) if self._counts(s)}
        found = await self._scraper.scrape({life: s.url for life, s in slots.items() if s.ready_at})
        for life, sample in found.items():
            if isinstance(sample, Sample):
                one.brain.saw(life, sample)
        now, wanted = self._clock(), len(self._supervisor.wanted(one.service))
        replicas = tuple(Replica(life, s.ready_at, s.draining_at) for life, s in slots.items())
        one.step = step = one.brain.step(
            Fleet(wanted, replicas, one.wake), self._bounded(one), one.service.leave_seconds, now
        )
        self._carry_out(one, step, slots, now)

    def _counts(self, slot: Slot) -> bool:
        """Whether a replica is there to be scaled: it is not being ended."""
        return not slot.is_stopping and slot.name in self._supervisor.wanted(slot.service)

    def _life(self, slot: Slot) -> str:
        """A name for this life of the replica: what it measured before it was started again is void."""
        return f"{slot.name} {slot.restarts} {slot.port}"

    def _bounded(self, one: _Scaled) -> Autoscaling:
        """The service's own bounds, and what is left of this machine's."""
        wanted = len(self._supervisor.wanted(one.service))
        room = max(wanted, self._most - self._supervisor.count_wanted() + wanted, 1)
        return dataclasses.replace(one.scaling, max_replicas=min(one.scaling.max_replicas, room))

    def _carry_out(self, one: _Scaled, step: Step, slots: dict[str, Slot], now: float) -> None:
        for life in step.undrain:
            self._supervisor.set_draining(slots[life], None)
        if step.drain:
            log.info("%s drains, to leave", slots[step.drain].name)
            self._supervisor.set_draining(slots[step.drain], now)
        if not step.is_change:
            return
        wanted = self._supervisor.wanted(one.service)
        if step.desired > len(wanted):
            self._supervisor.grow(one.service, step.desired - len(wanted))
        else:
            self._supervisor.remove(one.service, slots[step.remove].name if step.remove else wanted[-1])
        one.brain.made(step, one.scaling, now)
        one.told = status_after(one.told, step.decision, step.desired, now)
        self._tell(f"{one.service.name}: {sentence(step.decision, step.desired)}")
