"""Asks a cluster: InferenceServices and their pods from the API server, figures from the pods through its proxy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import kubernetes.config

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.names import API_VERSION, LABEL_SERVICE, PATH_METRICS, PLURAL, SERVER_PORT
from pagetide_spec.web import MOST_ANSWER_BYTES, whole_body

from ..cluster.client import ApiError, Client, load_configuration
from ..cluster.kinds import collection_path
from ..cluster.pods import is_alive, is_ready
from .exposition import look
from .frame import Frame, Row, row_of
from .sources import TIMEOUT_S, History, NoAnswer

Object = Mapping[str, Any]


class Api(Client):
    """The API server, also for what is no JSON: what pods say through its proxy."""

    async def text(self, path: str) -> str:
        """The body of an answer.

        Raises:
            ApiError: it was refused, or none came in time.
        """
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        url = self._configuration.host + path
        try:
            async with self._open().get(url, headers=self._identity(), timeout=timeout) as reply:
                if reply.status != 200:
                    raise ApiError(reply.status, str(reply.reason), f"HTTP status {reply.status}")
                return (await whole_body(reply.content.iter_any(), MOST_ANSWER_BYTES)).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", describe_failed_call(error)) from error


class ClusterSource:
    """All services of a cluster, or of one namespace.

    Raises:
        NoAnswer: there is no kubeconfig.
        SettingError: it cannot be used.
    """

    def __init__(self, namespace: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespace, self._clock = namespace, clock
        try:
            configuration = load_configuration()
        except kubernetes.config.ConfigException as error:
            raise NoAnswer(f"no cluster: {error}; or name a server or gateway: pagetide top URL") from None
        self._host, self._api = configuration.host, Api(configuration)
        self._histories: dict[str, History] = {}

    async def frame(self) -> Frame:
        """Services and pods."""
        try:
            services = await self._list(API_VERSION, PLURAL, {})
            pods = await self._list("v1", "pods", {"labelSelector": LABEL_SERVICE})
        except ApiError as error:
            raise NoAnswer(f"{self._host}: {error.reason}: {error}") from None
        rows = await asyncio.gather(*(self._row(pod) for pod in pods if is_alive(pod)))
        here = {_uid(pod) for pod in pods}
        self._histories = {uid: history for uid, history in self._histories.items() if uid in here}
        lines = [service_line(s) for s in services]
        title = f"cluster {self._host}"
        return Frame(title, sorted(rows, key=lambda r: (r.service, r.replica)), lines or ["no InferenceService"])

    async def close(self) -> None:
        """End its connections."""
        await self._api.close()

    async def _list(self, version: str, plural: str, query: Mapping[str, str]) -> Sequence[Object]:
        found = await self._api.request("GET", collection_path(version, plural, self._namespace), query)
        items: Sequence[Object] = found["items"]
        return items

    async def _row(self, pod: Object) -> Row:
        metadata = pod["metadata"]
        service = f"{metadata['namespace']}/{metadata['labels'][LABEL_SERVICE]}"
        if not is_ready(pod):
            return Row(service, metadata["name"], f"starting: {waits_for(pod)}")
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{SERVER_PORT}/proxy{PATH_METRICS}"
        try:
            text = await self._api.text(path)
            change = self._histories.setdefault(_uid(pod), History()).add(look(text, self._clock()))
        except (ApiError, ValueError) as error:
            return Row(service, metadata["name"], f"no answer: {error}")
        return row_of(service, metadata["name"], "ready", change)


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def waits_for(pod: Object) -> str:
    """Why a pod is not ready, in Kubernetes' word for it."""
    status = pod.get("status") or {}
    waiting = (c.get("state", {}).get("waiting") for c in status.get("containerStatuses") or [])
    reasons = [w["reason"] for w in waiting if w and "reason" in w]
    unmet = [c["reason"] for c in status.get("conditions") or [] if c.get("status") == "False" and c.get("reason")]
    return str(next(iter(reasons + unmet), status.get("phase", "Pending")))


def service_line(service: Object) -> str:
    """A service in one line: replicas, and the reason of its condition Ready."""
    status = service.get("status") or {}
    ready: Object = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), {})
    name = f"{service['metadata']['namespace']}/{service['metadata']['name']}"
    counts = f"{status.get('readyReplicas', 0)} of {status.get('desiredReplicas', '?')} ready"
    return f"{name}: {counts}, {ready.get('reason', 'not looked at yet')}"
