"""What must be done so that the children are as desired: pure, from two lists of objects to a list of actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagetide_spec.names import KIND, LABEL_MANAGED_BY, LABEL_SERVICE

from .desired.children import key_of
from .desired.pod import digest

Object = Mapping[str, Any]
Key = tuple[str, str]

# Made by the Deployment's controller, not by us.
_NOT_OURS = {"Pod", "ReplicaSet"}
# What cannot be changed once it is there; the name shows whether it is the wanted one.
_UNCHANGEABLE = {"Job"}


@dataclasses.dataclass(frozen=True)
class Apply:
    """Apply `manifest` on the server side. `is_new`: nothing of that name was seen; look again before."""

    manifest: Object
    is_new: bool


@dataclasses.dataclass(frozen=True)
class Delete:
    """Delete the object with this uid; gone already is fine."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclasses.dataclass(frozen=True)
class Settled:
    """After an apply: hashes of what was applied and of what the server made of it.

    Where a server writes a value differently from us (`1000m` as `1`), this distinguishes that from a real difference.
    """

    applied: str
    found: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Actions in order, and the names that objects of another owner hold."""

    actions: tuple[Apply | Delete, ...]
    taken: tuple[Key, ...]


def plan(desired: Sequence[Object], live: Iterable[Object], settled: Mapping[Key, Settled], uid: str) -> Plan:
    """How to come from `live` to `desired`, for the service with `uid`. Empty where nothing differs."""
    found = {key_of(o): o for o in live if o["kind"] not in _NOT_OURS}
    actions: list[Apply | Delete] = []
    taken: list[Key] = []
    for manifest in desired:
        key = key_of(manifest)
        now = found.pop(key, None)
        if now is not None and is_orphan(now, manifest):
            actions.append(Apply(manifest, is_new=False))
        elif now is not None and not is_owned(now, uid):
            if is_left_over(now):
                actions.append(_delete(now))
            else:
                taken.append(key)
        elif now is None:
            actions.append(Apply(manifest, is_new=True))
        elif kind_may_change(now) and not is_going(now) and not is_current(manifest, now, settled.get(key)):
            actions.append(Apply(manifest, is_new=False))
    actions += [_delete(o) for o in found.values() if is_owned(o, uid) and not is_going(o)]
    return Plan(tuple(actions), tuple(taken))


def kind_may_change(live: Object) -> bool:
    """Whether applying again can change an object of this kind."""
    return live["kind"] not in _UNCHANGEABLE


def is_current(manifest: Object, live: Object, settled: Settled | None) -> bool:
    """Whether applying `manifest` would change nothing."""
    return covers(live, manifest) or settled == settlement(manifest, live)


def settlement(manifest: Object, live: Object) -> Settled:
    """What to remember after `manifest` was applied and gave `live`."""
    metadata = {k: live["metadata"].get(k) for k in ("labels", "annotations", "ownerReferences")}
    body = {k: v for k, v in live.items() if k not in ("metadata", "status")}
    return Settled(digest(manifest), digest([metadata, body]))


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` has all that `wanted` has, at the same places.

    May say no where a server wrote the same in another way, never yes where something is missing: the stamp in
    `wanted` stands for what we no longer want, and the rest is compared as a whole.
    """
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(k in live and covers(live[k], v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(covers, live, wanted))
    return bool(live == wanted)


def is_owned(live: Object, uid: str) -> bool:
    """Whether the service with `uid` controls this object."""
    return any(r["uid"] == uid and r.get("controller") for r in _owners(live))


def is_left_over(live: Object) -> bool:
    """Whether it belongs to an earlier service of the same name, and waits for the garbage collector."""
    return any(r["kind"] == KIND and r.get("controller") for r in _owners(live))


def is_orphan(live: Object, manifest: Object) -> bool:
    """Whether it was this child of a service that was deleted without it (`kubectl delete --cascade=orphan`)."""
    labels, wanted = (o["metadata"].get("labels") or {} for o in (live, manifest))
    is_ours = all(k in wanted and labels.get(k) == wanted[k] for k in (LABEL_MANAGED_BY, LABEL_SERVICE))
    return is_ours and not is_going(live) and not any(r.get("controller") for r in _owners(live))


def is_going(live: Object) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in live["metadata"]


def _owners(live: Object) -> list[Mapping[str, Any]]:
    return live["metadata"].get("ownerReferences") or []


def _delete(live: Object) -> Delete:
    return Delete(live["apiVersion"], live["kind"], live["metadata"]["name"], live["metadata"]["uid"])
