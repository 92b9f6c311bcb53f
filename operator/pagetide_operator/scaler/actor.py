"""Carries the autoscaler's steps out in a cluster. It writes status and pods; the Deployment follows in `reconcile`."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Callable

from pagetide_spec.inference_service import InferenceService
from pagetide_spec.names import ANNOTATION_DRAINING, KIND

from .. import act
from ..autoscaling.autoscaler import Autoscaler, Fleet, Step
from ..autoscaling.explain import active_condition, changes_in, limited_condition, sentence, status_after
from ..autoscaling.policy import remembered
from ..autoscaling.samples import Sample
from ..autoscaling.scrape import Scraper
from ..autoscaling.windows import SCRAPE_S
from ..cluster.client import ApiError, Client
from ..cluster.pods import address_of, is_alive
from ..cluster.store import Name, Object, Store
from ..desired.children import wanted_replicas
from ..discovery import patiently
from ..telemetry import Telemetry
from ..verdicts.status import Verdict
from .fleet import drain_patch, fleet_of, undrain_patch, wake_of
from .rounds import Rounds
from .services import Services

logger = logging.getLogger(__name__)

# Before, a ReplicaSet does not heed the deletion cost.
DELETION_COST_SINCE = (1, 22)
# A status that another client has written meanwhile is written again over the new one, so often, so much later.
TRIES = 10
RETRY_S = 0.2


@dataclasses.dataclass
class _Scaled:
    """One service: which life of it, its autoscaler, what its conditions say, and the last wake that was handled."""

    uid: str
    brain: Autoscaler
    verdicts: tuple[Verdict, ...] = ()
    wake: float | None = None
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class Scaler:
    """Scales every service that has `spec.autoscaling`, round after round. `changed` is told whose status is to be
    looked at again."""

    def __init__(
        self,
        client: Client,
        store: Store,
        changed: Callable[[Name], None],
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
        interval_s: float = SCRAPE_S,
    ) -> None:
        self._client, self._store, self._changed, self._telemetry = client, store, changed, telemetry
        self._clock = clock
        self._scraper = Scraper(clock)
        self._known: dict[Name, _Scaled] = {}
        self._services = Services()
        self._rounds = Rounds(self._remaining, self._guarded, interval_s)
        self._follows_cost = True

    def verdicts(self, name: Name) -> tuple[Verdict, ...]:
        """ScalingActive and ScalingLimited of a service; nothing before its first round."""
        known = self._known.get(name)
        return known.verdicts if known else ()

    def noticed(self, name: Name) -> None:
        """Something about a service has changed: a gateway may ask for a replica where none is, or none will be."""
        resource, known = self._store.resource(name), self._known.get(name)
        wake = wake_of(resource) if resource else None
        if wake is not None and (known is None or wake != known.wake):
            self._rounds.hurry(name)

    async def run(self) -> None:
        """Round after round, and in between whatever wakes.

        Raises:
            OperatorError: the server does not report its version.
        """
        version = await patiently(functools.partial(act.server_version, self._client))
        self._follows_cost = version >= DELETION_COST_SINCE
        try:
            await self._rounds.run()
        finally:
            await self._scraper.close()

    def _remaining(self) -> list[Name]:
        """All services; those that are gone are forgotten."""
        names = self._store.resources()
        self._services.forget_all_but(set(names))
        for name in self._known.keys() - set(names):
            self._forget_one(name)
        return names

    async def _guarded(self, name: Name) -> None:
        """One service's round; whatever goes wrong with it stops no other."""
        try:
            await self._look(name)
        except ApiError as error:
            logger.warning("%s/%s: not scaled: %s", *name, error)
        except Exception:
            logger.exception("%s/%s: not scaled: unexpected error", *name)

    def _forget_one(self, name: Name) -> None:
        if self._known.pop(name, None):
            self._telemetry.forget_scaling(name)

    async def _undrain_all(self, name: Name) -> None:
        """No draining pod is removed of a service that is paused or not scaled any more."""
        for pod in self._pods(name):
            if ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {}):
                await self._patch(name, pod["metadata"]["uid"], undrain_patch(), "stays")

    async def _look(self, name: Name) -> None:
        resource = self._store.resource(name)
        service = self._services.scalable(name, resource)
        if resource is None or service is None:
            self._forget_one(name)
            await self._undrain_all(name)
            return
        known = self._known.get(name)
        if known is None or known.uid != service.uid:
            known = self._known[name] = self._first_sight(resource, service)
        known.wake = wake_of(resource)
        async with known.lock:
            await self._scale(name, service, known)

    def _first_sight(self, resource: Object, service: InferenceService) -> _Scaled:
        status = resource.get("status") or {}
        changes = changes_in(status.get("autoscaling") or {})
        memory = remembered(changes, wanted_replicas(service, status), self._clock())
        return _Scaled(service.uid, Autoscaler(memory, self._follows_cost))

    async def _scale(self, name: Name, service: InferenceService, known: _Scaled) -> None:
        if service.paused:
            await self._undrain_all(name)
            return self._tell(name, known, (Verdict("ScalingActive", False, "Paused", "the service is paused"),))
        await self._scrape(name, known)
        resource = self._store.resource(name)
        if resource is None or service.autoscaling is None:
            return None
        fleet = self._fleet(name, resource, service)
        step = known.brain.step(fleet, service.autoscaling, service.drain_seconds, self._clock())
        if step.is_change and await self._write(name, service, step, fleet.wake):
            known.brain.made(step, service.autoscaling, self._clock())
        await self._carry_out(name, step)  # the number first: it must not want for a pod that cannot be patched
        if self._known.get(name) is not known:  # the service went while this was under way
            return self._telemetry.forget_scaling(name)
        self._telemetry.scaling(name, step.decision, step.desired)
        return self._tell(name, known, _verdicts(step))

    def _fleet(self, name: Name, resource: Object, service: InferenceService) -> Fleet:
        children = self._store.children(name)
        deployment = next((c for c in children if c["kind"] == "Deployment"), None)
        desired = wanted_replicas(service, resource.get("status") or {})
        return fleet_of(resource, deployment, self._pods(name), desired)

    def _pods(self, name: Name) -> list[Object]:
        return [c for c in self._store.children(name) if c["kind"] == "Pod" and is_alive(c)]

    async def _scrape(self, name: Name, known: _Scaled) -> None:
        pods = {p["metadata"]["uid"]: address_of(p) for p in self._pods(name)}
        found = await self._scraper.scrape({uid: url for uid, url in pods.items() if url})
        for uid, sample in found.items():
            is_good = isinstance(sample, Sample)
            self._telemetry.scrapes.labels("ok" if is_good else "failed").inc()
            if isinstance(sample, Sample):
                known.brain.saw(uid, sample)
            else:
                logger.debug("%s/%s: no metrics of %s: %s", *name, uid, sample)

    async def _carry_out(self, name: Name, step: Step) -> None:
        """Mark the pods that drain for gateways and the ReplicaSet, and unmark those that stay after all."""
        for uid in step.undrain:
            await self._patch(name, uid, undrain_patch(), "stays")
        if step.drain:
            await self._patch(name, step.drain, drain_patch(self._clock()), "drains, to leave")

    async def _patch(self, name: Name, uid: str, patch: Object, word: str) -> None:
        for pod in (p for p in self._pods(name) if p["metadata"]["uid"] == uid):
            logger.info("%s/%s: pod %s %s", *name, pod["metadata"]["name"], word)
            written = await act.patch_pod(self._client, pod, patch)
            if written is not None:
                self._store.put("Pod", written)

    async def _write(self, name: Name, service: InferenceService, step: Step, wake: float | None) -> bool:
        """Put the new number into the status, where `reconcile` finds it, and report it; whether it was done.

        `wake` is the last ask for a replica that the step knew of.
        """
        for _ in range(TRIES):
            resource = self._store.resource(name)
            if resource is None:
                return False
            status = resource.get("status") or {}
            if wanted_replicas(service, status) != step.decision.current:
                return False  # bounds have changed meanwhile; the next round sees it
            if step.desired < step.decision.current and wake_of(resource) != wake:
                return False  # a gateway has begun to hold a request meanwhile
            told = status_after(status.get("autoscaling") or {}, step.decision, step.desired, self._clock())
            try:
                change = {"desiredReplicas": step.desired, "autoscaling": told}
                written = await act.write_status(self._client, resource, change)
            except ApiError as error:
                if error.code != 409:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if written is None:
                return False
            self._store.put(KIND, written)
            self._changed(name)
            await self._announce(name, resource, step)
            return True
        raise ApiError(409, "Conflict", f"its status was written by others {TRIES} times in a row")

    async def _announce(self, name: Name, resource: Object, step: Step) -> None:
        text = sentence(step.decision, step.desired)
        logger.info("%s/%s: %s", *name, text)
        self._telemetry.scaled(name, step.decision, step.desired)
        try:
            await act.post_event(self._client, resource, "Normal", "Scaled", text)
        except ApiError as error:  # status and log say the same
            logger.warning("%s/%s: no Event: %s", *name, error)

    def _tell(self, name: Name, known: _Scaled, verdicts: tuple[Verdict, ...]) -> None:
        if verdicts != known.verdicts:
            known.verdicts = verdicts
            self._changed(name)


def _verdicts(step: Step) -> tuple[Verdict, ...]:
    return (
        Verdict("ScalingActive", *active_condition(step.decision)),
        Verdict("ScalingLimited", *limited_condition(step.decision)),
    )
