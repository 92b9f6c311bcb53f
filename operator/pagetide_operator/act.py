"""Reads and writes of the objects of a cluster, each one request or list. The Lease has running/leader.py."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Mapping
from typing import Any

from pagetide_spec.names import API_VERSION, FIELD_MANAGER, KIND, PLURAL

from .cluster.client import ApiError, Client
from .cluster.kinds import BY_NAME, CHILD_SELECTOR, RESOURCE, Kind, collection_path, group_path
from .cluster.times import timestamp
from .plan import Delete

Object = Mapping[str, Any]

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_PAGE = "500"


async def discover(client: Client, kind: Kind) -> str | None:
    """The first of the kind's versions that this cluster has, or None."""
    for version in kind.versions:
        try:
            found = await client.request("GET", group_path(version))
        except ApiError as error:
            if error.code == 404:
                continue
            raise
        if any(r["name"] == kind.plural for r in found.get("resources", [])):
            return version
    return None


async def server_version(client: Client) -> tuple[int, int]:
    """Major and minor version of Kubernetes here; managed clusters write the minor as `27+`, or put words behind it.

    Where no number can be read it is taken for 0: nothing that came later is assumed.
    """
    found = await client.request("GET", "/version")
    return _leading_number(found["major"]), _leading_number(found["minor"])


def _leading_number(text: str) -> int:
    digits = re.match(r"[0-9]+", text)
    return int(digits[0]) if digits else 0


@dataclasses.dataclass(frozen=True)
class Listing:
    """All objects of a kind that concern us, as they were at a version of the cluster."""

    objects: list[Object]
    version: str


async def listed(client: Client, kind: Kind, version: str, namespace: str | None) -> Listing:
    """List a kind page by page; all pages show the state of the first."""
    query = {"limit": _PAGE} if kind is RESOURCE else {"limit": _PAGE, "labelSelector": CHILD_SELECTOR}
    out: list[Object] = []
    while True:
        page = await client.request("GET", collection_path(version, kind.plural, namespace), query)
        out += [{"apiVersion": version, "kind": kind.name, **item} for item in page.get("items", [])]
        token = page.get("metadata", {}).get("continue")
        if not token:
            return Listing(out, page.get("metadata", {}).get("resourceVersion", ""))
        query = {**query, "continue": token}


async def apply(client: Client, manifest: Object) -> Object:
    """Server-side apply of one manifest: what the server made of it.

    Raises:
        ApiError: refused.
    """
    query = {"fieldManager": FIELD_MANAGER, "force": "true"}
    return await client.request("PATCH", _path_of(manifest), query, dict(manifest), _APPLY)


async def find(client: Client, manifest: Object) -> Object | None:
    """What stands at the place of `manifest` now, or None.

    Raises:
        ApiError: refused.
    """
    try:
        return await client.request("GET", _path_of(manifest))
    except ApiError as error:
        if error.code == 404:
            return None
        raise


async def delete(client: Client, what: Delete, namespace: str) -> None:
    """Delete one object if it is still the same one."""
    path = collection_path(what.api_version, BY_NAME[what.kind].plural, namespace)
    options = {"preconditions": {"uid": what.uid}, "propagationPolicy": "Background"}
    try:
        await client.request("DELETE", f"{path}/{what.name}", body=options)
    except ApiError as error:
        if error.code not in (404, 409):
            raise


async def write_status(client: Client, resource: Object, changes: Object) -> Object | None:
    """Write the changed part of a status; None where the resource is gone or another of its name is there.

    The list of conditions is written as a whole, so only over the very state that it was made from.

    Raises:
        ApiError: refused, or another client has written meanwhile (409).
    """
    metadata = resource["metadata"]
    path = f"{collection_path(API_VERSION, PLURAL, metadata['namespace'])}/{metadata['name']}/status"
    same = {k: metadata[k] for k in ("uid", "resourceVersion")}
    body = {"metadata": same, "status": changes}
    try:
        return await client.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, _MERGE)
    except ApiError as error:
        if error.code in (404, 409, 422):
            await _raise_if_same(client, path.removesuffix("/status"), metadata["uid"], error)
            return None
        raise


async def _raise_if_same(client: Client, path: str, uid: str, error: ApiError) -> None:
    """Raise `error` again unless the object has gone or been replaced."""
    try:
        found = await client.request("GET", path)
    except ApiError as second:
        if second.code == 404:
            return
        raise
    if found["metadata"]["uid"] == uid:
        raise error


async def patch_pod(client: Client, pod: Object, patch: Object) -> Object | None:
    """Merge `patch` into a pod; None where it is gone or another of its name is there.

    Raises:
        ApiError: refused.
    """
    metadata = {**patch.get("metadata", {}), "uid": pod["metadata"]["uid"]}
    path = f"{collection_path('v1', 'pods', pod['metadata']['namespace'])}/{pod['metadata']['name']}"
    try:
        return await client.request(
            "PATCH", path, {"fieldManager": FIELD_MANAGER}, {**patch, "metadata": metadata}, _MERGE
        )
    except ApiError as error:
        if error.code in (404, 409):
            return None
        raise


async def post_event(client: Client, resource: Object, kind: str, reason: str, message: str) -> None:
    """An Event of `kind` (Normal or Warning) about a resource, to be seen by `kubectl describe`."""
    metadata = resource["metadata"]
    now = timestamp(time.time())
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await client.request("POST", collection_path("v1", "events", metadata["namespace"]), body=event)


def _path_of(manifest: Object) -> str:
    metadata = manifest["metadata"]
    collection = collection_path(manifest["apiVersion"], BY_NAME[manifest["kind"]].plural, metadata.get("namespace"))
    return f"{collection}/{metadata['name']}"


async def every(client: Client, versions: Mapping[str, str], namespaces: list[str | None]) -> dict[str, Listing]:
    """All objects of all known kinds: kind -> listing. Of several namespaces the oldest version counts."""
    out = {}
    for kind, version in versions.items():
        parts = await asyncio.gather(*(listed(client, BY_NAME[kind], version, ns) for ns in namespaces))
        oldest = min((p.version for p in parts), key=lambda v: int(v) if v.isdecimal() else 0)
        out[kind] = Listing([thing for part in parts for thing in part.objects], oldest)
    return out
