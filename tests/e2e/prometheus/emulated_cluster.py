"""The operator over an emulated API server, whose Deployments get pods that are servers of this machine.

Called as emulated_cluster.py METRICS_PORT ADDRESSES, where ADDRESSES is JSON: the IPs that a service's pods may have,
one after the other. What listens there on port 8000 is for the caller to start. Prints the API server's address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import aiohttp.web
import kmock
import kubernetes.client
from kmock import Server

from pagetide_operator.running.process import Operator, Options
from pagetide_spec.names import API_VERSION, KIND, LABEL_SERVICE, PLURAL

RESOURCES = f"{API_VERSION}/{PLURAL}"
VERBS = {"get", "list", "watch", "create", "patch", "update", "delete"}
# From its Deployment's wish to a pod that is ready; long enough for Prometheus to see requests wait for it.
START_S = 3.0
SERVICES: Mapping[str, Mapping[str, Any]] = {
    # Asked for more than it may have as soon as requests wait.
    "llm": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2, "targets": {"queueTimeSeconds": 0.05}}},
    "frail": {"replicas": 2},
    "asleep": {"autoscaling": {"minReplicas": 0, "maxReplicas": 1}},
    # Of which the API server takes no Deployment.
    "refused": {"autoscaling": {"minReplicas": 0, "maxReplicas": 1}},
}


class Emulator(kmock.KubernetesEmulator):
    """Makes objects by server-side apply, and gives them a uid, as the real server does."""

    async def _handle(self, request: Any) -> Any:
        if request.name == "refused" and request.resource is not None and request.resource.plural == "deployments":
            refusal = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "exceeded quota"}
            return aiohttp.web.json_response(refusal, status=403)
        if request.resource is not None and request.action == kmock.action.UPDATE and request.subresource is None:
            key = (request.resource, request.namespace, request.name)
            if key not in self.objects or self.objects[key].deleted:
                metadata = request.data["metadata"] | {"uid": str(uuid.uuid4())}
                self.objects[key] = request.data | {"metadata": metadata}
        return await super()._handle(request)


def head(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "7", **more}


def pod(service: str, name: str, address: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    status = {"phase": "Running", "podIP": address, "conditions": [ready]}
    metadata = head(name, labels={LABEL_SERVICE: service}, annotations=dict(annotations))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


class Deployments:
    """The controller that gives Deployments their pods; none is taken away."""

    def __init__(self, emulator: Emulator, addresses: Mapping[str, Sequence[str]]) -> None:
        self._emulator, self._addresses = emulator, addresses

    async def run(self) -> None:
        """Until cancelled."""
        async with aiohttp.ClientSession(str(self._emulator.url)) as session, asyncio.TaskGroup() as tasks:
            for service, addresses in self._addresses.items():
                tasks.create_task(self._follow(session, service, addresses))

    async def _follow(self, session: aiohttp.ClientSession, service: str, addresses: Sequence[str]) -> None:
        for index, address in enumerate(addresses):
            while self._wanted(service) <= index:  # noqa: ASYNC110 - the emulator has no event for us
                await asyncio.sleep(0.1)
            await asyncio.sleep(START_S)
            template = self._deployments[service]["spec"]["template"]["metadata"]
            made = pod(service, f"{service}-{index}", address, template.get("annotations") or {})
            await session.post("/api/v1/namespaces/ns/pods", json=made, raise_for_status=True)

    @property
    def _deployments(self) -> dict[str, Mapping[str, Any]]:
        objects = self._emulator.objects.items()
        return {name: found for (kind, _, name), found in objects if kind.plural == "deployments"}

    def _wanted(self, service: str) -> int:
        found = self._deployments.get(service)
        return found["spec"]["replicas"] if found else 0


async def main(port: int, addresses: Mapping[str, Sequence[str]]) -> None:
    async with Emulator() as emulator, Server(emulator):
        emulator.resources.load_bundled()
        emulator.resources[RESOURCES] = {"kind": KIND, "namespaced": True, "verbs": VERBS, "subresources": {"status"}}
        for name, spec in SERVICES.items():
            asleep = spec.get("autoscaling", {}).get("minReplicas") == 0
            status = {"desiredReplicas": 0} if asleep else {}
            spec = {"model": {"uri": "file:///model"}, **spec}
            service = {"apiVersion": API_VERSION, "kind": KIND, "metadata": head(name), "spec": spec, "status": status}
            emulator.objects[RESOURCES, "ns", name] = service
        configuration = kubernetes.client.Configuration()
        configuration.host = str(emulator.url).rstrip("/")
        print(f"API server at {configuration.host}", flush=True)
        options = Options("pagetide/server:1", namespaces=("ns",), metrics_port=port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Deployments(emulator, addresses).run())
            await Operator(configuration, options).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
