"""Pagetide's own server in pods, behind the Service: rolled, scaled, killed and deleted under a running client.

The model is tiny and random, and lies in a ConfigMap, so that any cluster with the images can run this.
"""

import base64
import json
import pathlib

import pytest

from pagetide_spec.names import API_VERSION, KIND, LABEL_SERVICE

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

HERE = pathlib.Path(__file__).parent


def service(replicas=1):
    volume = {"name": "model", "configMap": {"name": "model"}}
    mount = {"name": "model", "mountPath": "/srv/model"}
    spec = {
        "model": {"uri": "file:///srv/model", "servedName": "tiny"},
        "engine": {"kvCacheMemoryGib": 0.05, "swapSpaceGib": 0, "maxNumSeqs": 8},
        "replicas": replicas,
        "drainSeconds": 5,
        "template": {"volumes": [volume], "volumeMounts": [mount]},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "llm"}, "spec": spec}


class Talk:
    """What the client in the pod has said."""

    def __init__(self, cluster, kubectl):
        self._cluster, self._kubectl, self._marked = cluster, kubectl, 0

    async def start(self):
        await self._cluster.create(config_map("client", {"client.py": (HERE / "client.py").read_bytes()}))
        container = {"name": "client", "image": "python:3.12-slim"}
        container["command"] = ["python3", "-u", "/client/client.py", "http://llm", "0.1"]
        container["volumeMounts"] = [{"name": "client", "mountPath": "/client"}]
        spec = {"containers": [container], "volumes": [{"name": "client", "configMap": {"name": "client"}}]}
        spec |= {"terminationGracePeriodSeconds": 0}
        await self._cluster.create({"kind": "Pod", "metadata": {"name": "client"}, "spec": spec})

    async def said(self):
        """All of it since the last `mark`."""
        text = await self._kubectl("logs", f"--namespace={self._cluster.namespace}", "client")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")][self._marked :]

    async def mark(self):
        """Forget what was said; what was wrong in it."""
        said = await self.said()
        self._marked += len(said)
        return [s["problem"] for s in said if s["problem"]]

    async def works(self):
        """Whether the latest requests were answered."""
        said = await self.said()
        return len(said) >= 3 and not any(s["problem"] for s in said[-3:])

    async def fails(self):
        """Whether the latest request was not; one is enough, as each may wait for its whole time limit."""
        said = await self.said()
        return bool(said) and bool(said[-1]["problem"])


def config_map(name, files):
    data = {k: base64.b64encode(v).decode() for k, v in files.items()}
    return {"kind": "ConfigMap", "metadata": {"name": name}, "binaryData": data}


async def servers(cluster):
    """Names of the pods that serve and are to stay."""
    pods = [p for p in await cluster.list("Pod") if LABEL_SERVICE in p["metadata"].get("labels", {})]
    return {p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]}


async def test_a_real_server_under_a_running_client(cluster, images, operator, kubectl, tiny_model):
    space = f"--namespace={cluster.namespace}"
    files = {p.name: p.read_bytes() for p in tiny_model("llama").iterdir()}
    await cluster.create(config_map("model", files))
    await cluster.create(service())
    await cluster.ready("llm", 120)
    talk = Talk(cluster, kubectl)
    await talk.start()
    await cluster.until(talk.works, 60)
    await talk.mark()

    # A rollout: another server answers, and the client notices nothing.
    old = await servers(cluster)
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 16}}})
    await cluster.until(lambda: is_replaced(cluster, old, 1), 120, lambda: cluster.condition("llm"))
    await cluster.until(talk.works, 30)
    assert await talk.mark() == []

    # Scaling: the status says what both can hold, in the servers' own words.
    await kubectl("scale", space, "pgt/llm", "--replicas=2")
    await cluster.until(lambda: holds(cluster, 32), 120, lambda: cluster.service("llm"))
    await cluster.until(talk.works, 30)
    assert await talk.mark() == []

    # A replica that dies is replaced.
    victim = min(await servers(cluster))
    await kubectl("delete", "pod", space, victim, "--grace-period=0", "--force")
    await cluster.until(lambda: is_replaced(cluster, {victim}, 2), 120)
    await talk.mark()
    await cluster.until(talk.works, 30)

    # One that goes by itself lets its requests end.
    await kubectl("scale", space, "pgt/llm", "--replicas=1")
    await cluster.until(lambda: holds(cluster, 16), 120)
    await cluster.until(talk.works, 30)
    assert await talk.mark() == []

    await kubectl("delete", space, "pgt/llm")
    await cluster.until(lambda: is_gone(cluster), 120)
    await cluster.until(talk.fails, 120)


async def is_replaced(cluster, old, count):
    new = await servers(cluster)
    return len(new) == count and not new & old and await cluster.is_ready("llm")


async def holds(cluster, sequences):
    return ((await cluster.service("llm"))["status"].get("capacity") or {}).get("maxConcurrency") == sequences


async def is_gone(cluster):
    return not await servers(cluster) and not await cluster.find("Service", "llm")
