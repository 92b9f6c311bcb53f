"""reconcile: observe one service, decide, act. Level-triggered: whatever happened, the same function runs."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pagetide_spec.errors import ResourceError
from pagetide_spec.inference_service import InferenceService

from . import act
from .cluster.client import ApiError, Client
from .cluster.kinds import OPTIONAL, POOL
from .cluster.store import Name, Store, name_of, service_of
from .decide import Seen, events_for, look_again_after, plan_for, status_changes, understood
from .desired.children import Platform, key_of
from .plan import Apply, Delete, Key, Plan, Settled, is_orphan, is_owned, settlement
from .verdicts.capacity import Meter
from .verdicts.failures import Failure
from .verdicts.pool import NO_EXTENSION
from .verdicts.status import Verdict

logger = logging.getLogger(__name__)


TAKEN_RETRY_SECONDS = 10.0
# The autoscaler writes the same status: after a crossing, its watch event is as good as here.
CROSSED_RETRY_SECONDS = 0.2


class NameTaken(Exception):
    """An object of that name exists and is not ours; it is left alone."""


class Reconciler:
    """Brings services to their desired state, one call of `reconcile` each time that something may have changed.

    `scaling` tells the conditions that the autoscaler has to say about a service.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        platform: Platform,
        meter: Meter,
        clock: Callable[[], float] = time.time,
        scaling: Callable[[Name], Sequence[Verdict]] = lambda _: (),
    ) -> None:
        self._client, self._store, self._platform, self._meter, self._clock = client, store, platform, meter, clock
        self._scaling = scaling
        self._settled: dict[Name, dict[Key, Settled]] = {}
        self._late: set[Name] = set()  # services of which a child was seen only while they were reconciled

    def note(self, *, has_service_monitors: bool, has_inference_pools: bool) -> None:
        """What of the cluster may change while the operator runs."""
        self._platform = dataclasses.replace(
            self._platform, has_service_monitors=has_service_monitors, has_inference_pools=has_inference_pools
        )

    async def reconcile(self, name: Name) -> float | None:
        """Bring one service to its desired state; returns after how many seconds to reconcile again, if at all.

        Raises:
            ApiError: something could not be done; all that could, was, and the status says what could not.
            Exception: a fault of ours; the status says so.
        """
        resource = self._store.resource(name)
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            self._settled.pop(name, None)
            return None
        self._late.discard(name)
        service, errors = self._understood(resource), list[Exception]()
        without = {} if self._platform.has_inference_pools else {POOL.name: NO_EXTENSION}
        if isinstance(service, InferenceService):
            errors = await self._repair(service, self._seen(name, resource, {}), without)
        seen = self._seen(name, resource, without)
        self._meter.ask(name, seen.pods)
        is_told = await self._report(seen, service, trouble_of(errors))
        for error in errors:
            if not isinstance(error, NameTaken):
                raise error
        if not is_told:
            return CROSSED_RETRY_SECONDS
        if name in self._late:
            return 0.0
        if errors:  # no watch reports when the other object goes
            return TAKEN_RETRY_SECONDS
        return look_again_after(seen, self._platform.surge_patience, self._clock())

    def _seen(self, name: Name, resource: Any, without: Mapping[str, Failure]) -> Seen:
        children, fetchers = self._store.children(name), self._store.fetchers(name)
        return Seen(resource, children, self._meter.known, self._scaling(name), fetchers, without)

    def _understood(self, resource: Any) -> InferenceService | ResourceError:
        try:
            return understood(resource)
        except ResourceError as error:
            return error

    async def _repair(self, service: InferenceService, seen: Seen, without: dict[str, Failure]) -> list[Exception]:
        """Carry out the plan; what went wrong in the end. Failures of optional kinds go into `without`."""
        settled = self._settled.setdefault((service.namespace, service.name), {})
        try:
            todo = plan_for(service, seen, self._platform, settled, self._clock())
        except Exception as error:  # noqa: BLE001 - reported in the status and raised again there
            return [error]
        errors: list[Exception] = [_taken(todo)] if todo.taken else []
        for action in todo.actions:
            try:
                await self._perform(action, service, settled)
            except (ApiError, NameTaken) as error:
                if kind := _optional_kind(action):  # its service serves without it
                    logger.warning("%s/%s: %s", service.namespace, service.name, error)
                    without |= {kind: trouble} if (trouble := trouble_of([error])) else {}
                else:
                    errors.append(error)
        return errors

    async def _perform(self, action: Apply | Delete, service: InferenceService, settled: dict[Key, Settled]) -> None:
        if isinstance(action, Delete):
            logger.info("%s/%s: delete %s %s", service.namespace, service.name, action.kind, action.name)
            await act.delete(self._client, action, service.namespace)
            return
        manifest = action.manifest
        kind, name = key_of(manifest)
        if action.is_new and await self._was_there(manifest, service):
            return
        logger.info("%s/%s: apply %s %s", service.namespace, service.name, kind, name)
        found = await act.apply(self._client, manifest)
        settled[kind, name] = settlement(manifest, found)
        self._store.put(kind, found)

    async def _was_there(self, manifest: Any, service: InferenceService) -> bool:
        """Whether a child that nobody had seen yet exists and is ours: then decide again, knowing it.

        One that has lost its label is not seen by any watch; it is for us to apply.
        """
        found = await act.find(self._client, manifest)
        if found is None:
            return False
        kind, name = key_of(manifest)
        if not is_owned(found, service.uid) and not is_orphan(found, manifest):
            raise NameTaken(f"{kind} {name} exists and has another owner")
        if (service.namespace, service.name) not in service_of(kind, found):
            return False
        self._store.put(kind, found)
        self._late.add((service.namespace, service.name))
        return True

    async def _report(self, seen: Seen, service: InferenceService | ResourceError, trouble: Failure | None) -> bool:
        """Write the status where it changed, and report a new state of readiness.

        False where another client has written it since it was seen: then it is to be decided again.
        """
        before = seen.resource.get("status") or {}
        change = status_changes(seen, service, trouble, self._clock())
        if not change:
            return True
        try:
            written = await act.write_status(self._client, seen.resource, change)
        except ApiError as error:
            if error.code != 409:
                raise
            return False
        if written is None:
            return True
        self._store.put("InferenceService", written)
        for event in events_for(before, change):
            try:
                await act.post_event(self._client, seen.resource, *event)
            except ApiError as error:  # the status says the same
                logger.warning("%s/%s: no Event: %s", *name_of(seen.resource), error)
        return True


def trouble_of(errors: Sequence[Exception]) -> Failure | None:
    """What failed actions mean for the status: the first that is a matter of the service.

    An unreachable server, or one that is busy, is none: the status stays until the next try.
    """
    for error in errors:
        if isinstance(error, NameTaken):
            return Failure("NameConflict", str(error))
        if not isinstance(error, ApiError):
            return Failure("InternalError", f"the operator failed ({type(error).__name__}); its log has more")
        if not error.is_temporary:
            return Failure("ApplyFailed", error.message)
    return None


def _optional_kind(action: Apply | Delete) -> str | None:
    kind: str = action.manifest["kind"] if isinstance(action, Apply) else action.kind
    return kind if any(kind == k.name for k in OPTIONAL) else None


def _taken(todo: Plan) -> NameTaken:
    what = ", ".join(f"{kind} {name}" for kind, name in todo.taken)
    return NameTaken(f"{what} exists and has another owner")
