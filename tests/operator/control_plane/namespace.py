"""One namespace of a real cluster, and services whose pods any cluster can run."""

import asyncio
import copy
import time

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.kinds import BY_NAME, collection_path
from pagetide_spec.names import API_VERSION, KIND, PLURAL


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace

    async def get(self, kind, name, namespace=None):
        return await self.client.request("GET", self.path(kind, name, namespace))

    async def find(self, kind, name):
        """The object, or None."""
        try:
            return await self.get(kind, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind):
        return (await self.client.request("GET", self.path(kind)))["items"]

    async def create(self, manifest):
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        return await self.client.request("POST", self.path(manifest["kind"]), body={**manifest, "metadata": metadata})

    async def patch(self, kind, name, patch, subresource=""):
        return await self.client.request(
            "PATCH", self.path(kind, name) + subresource, body=patch, content_type="application/merge-patch+json"
        )

    async def delete(self, kind, name):
        return await self.client.request("DELETE", self.path(kind, name), body={"propagationPolicy": "Background"})

    def path(self, kind, name="", namespace=None):
        version, plural = _PLACES.get(kind) or (BY_NAME[kind].versions[-1], BY_NAME[kind].plural)
        path = collection_path(version, plural, namespace or self.namespace)
        return f"{path}/{name}" if name else path

    async def until(self, check, seconds=20, detail=None, pause=0.1):
        return await until(check, seconds, detail, pause)

    def manifest(self, name, env=None, **spec):
        return manifest(name, env, **spec)

    async def service(self, name):
        return await self.get(KIND, name)

    async def condition(self, name, kind="Ready"):
        """{status, reason, message} of a condition; an empty one where it has none yet."""
        status = (await self.service(name)).get("status", {})
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {"status": None, "reason": None})

    async def is_ready(self, name):
        """Whether the service is Ready, for its present generation."""
        found = await self.service(name)
        ready = await self.condition(name)
        return ready["status"] == "True" and ready["observedGeneration"] == found["metadata"]["generation"]

    async def ready(self, name, seconds=40):
        await until(lambda: self.is_ready(name), seconds, lambda: self.condition(name))


_PLACES = {
    KIND: (API_VERSION, PLURAL),
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Secret": ("v1", "secrets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "ResourceQuota": ("v1", "resourcequotas"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
}


async def until(check, seconds=20, detail=None, pause=0.1):
    """The first true result of an async check, made again after each pause."""
    end = time.monotonic() + seconds
    while not (result := await check()):
        if time.monotonic() > end:
            more = f": {await detail()}" if detail else ""
            raise AssertionError(f"not within {seconds} s{more}")
        await asyncio.sleep(pause)
    return result


TEMPLATE = {
    "containers": [{"name": "server", "command": ["python3", "/fake/fake_server.py"]}],
    "volumes": [{"name": "fake", "configMap": {"name": "fake"}}],
    "volumeMounts": [{"name": "fake", "mountPath": "/fake"}],
}


def manifest(name, env=None, **spec):
    """A service whose pods run the fake server; any cluster can run it."""
    template = copy.deepcopy(TEMPLATE)
    template["env"] = [{"name": k, "value": v} for k, v in (env or {}).items()]
    fields = {"model": {"uri": "file:///srv/model"}, "image": "python:3.12-slim", "template": template}
    fields |= {"drainSeconds": 1, "engine": {"shutdownTimeoutS": 1}, "replicas": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {**fields, **spec}}
