"""The operator over an emulated API server, with one scaled service whose pods are real servers.

Called as operator_on_emulator.py METRICS_PORT POD_IP...; the servers listen on port 8000 of these addresses.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from typing import Any

import kmock
import kubernetes.client
from kmock import Server

from pagetide_operator.running.process import Operator, Options
from pagetide_spec.names import API_VERSION, KIND, LABEL_SERVICE, PLURAL

RESOURCES = f"{API_VERSION}/{PLURAL}"
VERBS = {"get", "list", "watch", "create", "patch", "update", "delete"}
# Asked for more than it may have as soon as requests wait.
AUTOSCALING = {"minReplicas": 1, "maxReplicas": 2, "targets": {"queueTimeSeconds": 0.05}}


class Emulator(kmock.KubernetesEmulator):
    """Makes objects by server-side apply, and gives them a uid, as the real server does."""

    async def _handle(self, request: Any) -> Any:
        if request.resource is not None and request.action == kmock.action.UPDATE and request.subresource is None:
            key = (request.resource, request.namespace, request.name)
            if key not in self.objects or self.objects[key].deleted:
                metadata = request.data["metadata"] | {"uid": str(uuid.uuid4())}
                self.objects[key] = request.data | {"metadata": metadata}
        return await super()._handle(request)


def head(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "7", **more}


def pod(name: str, address: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    status = {"phase": "Running", "podIP": address, "conditions": [ready]}
    labels = {LABEL_SERVICE: "llm"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head(name, labels=labels), "spec": {}, "status": status}


async def main(port: int, addresses: list[str]) -> None:
    async with Emulator() as emulator, Server(emulator):
        emulator.resources.load_bundled()
        emulator.resources[RESOURCES] = {"kind": KIND, "namespaced": True, "verbs": VERBS, "subresources": {"status"}}
        spec = {"model": {"uri": "file:///model"}, "autoscaling": AUTOSCALING}
        service = {"apiVersion": API_VERSION, "kind": KIND, "metadata": head("llm"), "spec": spec, "status": {}}
        emulator.objects[RESOURCES, "ns", "llm"] = service
        for index, address in enumerate(addresses):
            emulator.objects["v1/pods", "ns", f"llm-{index}"] = pod(f"llm-{index}", address)
        configuration = kubernetes.client.Configuration()
        configuration.host = str(emulator.url).rstrip("/")
        options = Options("pagetide/server:1", namespaces=("ns",), metrics_port=port)
        await Operator(configuration, options).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
