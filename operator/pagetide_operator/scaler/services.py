"""Which services are to be scaled. Each state of a resource is read once, however often it is used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pagetide_spec.errors import ResourceError
from pagetide_spec.inference_service import InferenceService

from ..cluster.store import Name
from ..decide import understood

Object = Mapping[str, Any]


class Services:
    """Remembers what it has read."""

    def __init__(self) -> None:
        self._read: dict[Name, tuple[Object, InferenceService | None]] = {}

    def scalable(self, name: Name, resource: Object | None) -> InferenceService | None:
        """The service of a resource if it is one with `spec.autoscaling`, and not on its way out."""
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            return None
        if name not in self._read or self._read[name][0] is not resource:
            self._read[name] = (resource, _read(resource))
        return self._read[name][1]

    def forget_all_but(self, names: Collection[Name]) -> None:
        """Forget the services that are gone."""
        self._read = {name: found for name, found in self._read.items() if name in names}


def _read(resource: Object) -> InferenceService | None:
    """Of a service that is not scaled, and of one that is invalid, there is nothing to know."""
    spec = resource.get("spec")
    if not isinstance(spec, Mapping) or not spec.get("autoscaling"):
        return None
    try:
        return understood(resource)
    except ResourceError:
        return None
