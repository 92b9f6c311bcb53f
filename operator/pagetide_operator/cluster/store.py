"""What the operator has seen of the cluster: filled by watch events, corrected by the relist. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagetide_spec.names import KIND, LABEL_PREFETCH, LABEL_SERVICE

Object = Mapping[str, Any]
Name = tuple[str, str]

# An answer is late by seconds at most.
_MOST_ENDS = 10_000


class Store:
    """Objects by kind, namespace and name, and the children of each service."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Name, Object]] = {}
        self._children: dict[Name, dict[tuple[str, str], Object]] = {}
        self._gone: dict[str, str] = {}

    def put(self, kind: str, found: Object) -> set[Name]:
        """Remember an object unless a later state of it, or its end, is known; returns the services it concerns.

        Those are two where its label has changed: the one that has lost it will want it back.
        """
        metadata = {k: v for k, v in found["metadata"].items() if k != "managedFields"}
        thing = {**found, "kind": kind, "metadata": metadata}
        if self._is_late(kind, thing):
            return service_of(kind, thing)
        name = name_of(thing)
        known = self._objects.setdefault(kind, {}).get(name)
        before = self._drop(kind, name, known) if known is not None else set()
        self._objects[kind][name] = thing
        owners = service_of(kind, thing)
        if kind != KIND:
            for owner in owners:
                self._children.setdefault(owner, {})[kind, name[1]] = thing
        return before | owners

    def remove(self, kind: str, gone: Object) -> set[Name]:
        """Forget an object, unless another of the same name has taken its place; returns the services it concerns."""
        name = name_of(gone)
        self._note_end(gone)
        known = self._objects.get(kind, {}).get(name)
        if known is None or not _is_same(known, gone):
            return service_of(kind, gone)
        return self._drop(kind, name, known)

    def _is_late(self, kind: str, thing: Object) -> bool:
        """Whether a later state of this very object, or its end, is known."""
        known = self._objects.get(kind, {}).get(name_of(thing))
        if known is not None and _is_same(thing, known) and _is_older(_version(thing), _version(known)):
            return True
        return _is_older(_version(thing), self._gone.get(thing["metadata"].get("uid", ""), ""))

    def _note_end(self, gone: Object) -> None:
        """The answer to a write of our own may come after the news that its object is deleted already."""
        self._gone[gone["metadata"].get("uid", "")] = _version(gone)
        while len(self._gone) > _MOST_ENDS:
            del self._gone[next(iter(self._gone))]

    def _drop(self, kind: str, name: Name, known: Object) -> set[Name]:
        del self._objects[kind][name]
        owners = service_of(kind, known)
        if kind != KIND:
            for owner in owners:
                left = self._children.get(owner, {})
                left.pop((kind, name[1]), None)
                if not left:
                    self._children.pop(owner, None)
        return owners

    def replace(self, kind: str, found: Iterable[Object], version: str) -> set[Name]:
        """Make `found` all there was of `kind` at `version`; returns the services about which the store was wrong.

        What has come to be after `version` stays.
        """
        listed = {name_of(o): o for o in found}
        wrong: set[Name] = set()
        for name, known in list(self._objects.get(kind, {}).items()):
            if name not in listed and not _is_older(version, _version(known)):
                wrong |= self._drop(kind, name, known)
        for name, thing in listed.items():
            before = self._objects.get(kind, {}).get(name)
            if not self._is_late(kind, thing) and (before is None or _version(before) != _version(thing)):
                wrong |= self.put(kind, thing)
        return wrong

    def resource(self, name: Name) -> Object | None:
        """The InferenceService of that namespace and name."""
        return self._objects.get(KIND, {}).get(name)

    def resources(self) -> list[Name]:
        """All InferenceServices."""
        return list(self._objects.get(KIND, {}))

    def children(self, service: Name) -> list[Object]:
        """The objects that carry the label of that service, whoever made them."""
        return [c for c in self._children.get(service, {}).values() if not _is_fetcher(c)]

    def fetchers(self, service: Name) -> list[Object]:
        """The pods that fill the model cache of that service."""
        return [c for c in self._children.get(service, {}).values() if _is_fetcher(c)]


def name_of(thing: Object) -> Name:
    """(namespace, name)."""
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def service_of(kind: str, thing: Object) -> set[Name]:
    """The service that an object is, or belongs to by its label, if any."""
    namespace, name = name_of(thing)
    if kind == KIND:
        return {(namespace, name)}
    labels = thing["metadata"].get("labels") or {}
    label = labels.get(LABEL_SERVICE) or labels.get(LABEL_PREFETCH)
    return {(namespace, label)} if label else set()


def _is_fetcher(thing: Object) -> bool:
    return LABEL_PREFETCH in (thing["metadata"].get("labels") or {})


def _is_same(thing: Object, other: Object) -> bool:
    """Whether both are states of one object, not of two that had the same name one after the other."""
    return bool(thing["metadata"].get("uid") == other["metadata"].get("uid"))


def _version(thing: Object) -> str:
    return str(thing["metadata"].get("resourceVersion", ""))


def _is_older(new: str, old: str) -> bool:
    """Whether version `new` is before `old`: watches, lists and the answers to our writes overtake each other.

    Versions are comparable as numbers on every API server there is; where they are no numbers, the last to come counts.
    """
    return new.isdecimal() and old.isdecimal() and int(new) < int(old)
