"""The gateway before real pods, with the rights of the shipped role and no others."""

import asyncio
import copy
import os
import pathlib
import socket
import subprocess
import sys
import uuid

import aiohttp
import pytest
import yaml

from pagetide_operator.cluster.kinds import collection_path
from pagetide_spec.names import ANNOTATION_DRAINING, ANNOTATION_WAKE, KIND

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HERE = pathlib.Path(__file__).parent
RBAC = "rbac.authorization.k8s.io"


def talking(cluster, name, **spec):
    """A service whose pods answer as `talking_server.py` does."""
    out = copy.deepcopy(cluster.manifest(name, env={"MODEL": name}, **spec))
    template = out["spec"]["template"]
    template["containers"][0]["command"] = ["python3", "/talk/talking_server.py"]
    template["volumes"] = [{"name": "talk", "configMap": {"name": "talk"}}]
    template["volumeMounts"] = [{"name": "talk", "mountPath": "/talk"}]
    return out


async def account_of_the_gateway(cluster, manifest):
    """A token of the namespace's default account, which has the gateway's role there and nothing else."""
    role = next(d for d in yaml.safe_load_all(manifest.read_text()) if d["kind"] == "ClusterRole")
    query = {"fieldManager": "pagetide-tests", "force": "true"}
    path = collection_path(f"{RBAC}/v1", "clusterroles", None) + f"/{role['metadata']['name']}"
    await cluster.client.request("PATCH", path, query, role, "application/apply-patch+yaml")
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "gateway"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}],
    }
    await cluster.client.request("POST", collection_path(f"{RBAC}/v1", "rolebindings", cluster.namespace), body=binding)
    await cluster.until(lambda: cluster.find("ServiceAccount", "default"))
    path = cluster.path("ServiceAccount", "default") + "/token"
    answer = await cluster.client.request("POST", path, body={"spec": {"expirationSeconds": 3600}})
    return answer["status"]["token"]


class Front:
    """A gateway process and a client for it."""

    def __init__(self, cluster, kubeconfig, log):
        self.log = log
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pagetide_cli.main", "gateway", "--host=127.0.0.1", f"--port={port}"]
        command += [f"--namespace={cluster.namespace}", "--drain-seconds=1"]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    async def post(self, model, **fields):
        """(status, who answered, text) of one request."""
        body = {"model": model, **{"prompt": "x", **fields}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=body) as response,
        ):
            return response.status, response.headers.get("x-pagetide-replica"), await response.text()

    async def answers(self, model):
        """Who has answered, once the gateway is up and the model has a replica that does."""
        try:
            status, who, _ = await self.post(model)
        except aiohttp.ClientError:
            return None
        return who if status == 200 else None


@pytest.fixture
async def front(cluster, nodes, other_kubeconfig, tmp_path, request):
    token = await account_of_the_gateway(cluster, request.config.rootpath / "manifests" / "gateway.yaml")
    script = (HERE / "talking_server.py").read_text()
    await cluster.create({"kind": "ConfigMap", "metadata": {"name": "talk"}, "data": {"talking_server.py": script}})
    front = Front(cluster, other_kubeconfig("gateway", token=token), tmp_path / "gateway.log")
    yield front
    front.process.terminate()
    code = front.process.wait(timeout=15)
    print(front.log.read_text())
    assert code == 0
    assert "forbidden" not in front.log.read_text()


async def stream(front, started):
    """(who, whole text) of a stream of three seconds; tells when it has begun."""
    body = {"model": "llm", "prompt": "x", "stream": True, "max_tokens": 30}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{front.url}/v1/completions", json=body, headers={"x-session-id": "s"}) as response,
    ):
        text = (await response.content.readuntil(b"\n\n")).decode()
        started.set_result(response.headers["x-pagetide-replica"])
        return text + await response.text()


async def begin(front):
    """A stream that has begun: (who, the task that reads it)."""
    started = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(stream(front, started))
    return await started, task


async def who_answer(front, count=12):
    """Those that answer prompts which have nothing in common."""
    return {(await front.post("llm", prompt=uuid.uuid4().hex))[1] for _ in range(count)}


async def test_pods_are_found_drained_and_lost(cluster, front, operator):
    await cluster.create(talking(cluster, "llm", replicas=2))
    await cluster.ready("llm")

    async def both():
        return len(await who_answer(front)) == 2

    await cluster.until(lambda: front.answers("llm"), 20)
    first, reading = await begin(front)

    # The one that is to leave gets nothing new, and ends what it has.
    await cluster.patch("Pod", first, {"metadata": {"annotations": {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}})
    await cluster.until(lambda: only_others(front, first), 5)
    text = await reading
    assert text.count("data: ") == 31
    assert "error" not in text
    await cluster.patch("Pod", first, {"metadata": {"annotations": {ANNOTATION_DRAINING: None}}})

    # The streams of one that dies end with an error, and its place is taken by another.
    victim, reading = await begin(front)
    await cluster.client.request("DELETE", cluster.path("Pod", victim), body={"gracePeriodSeconds": 0})
    text = await reading
    assert text.endswith("data: [DONE]\n\n")
    assert ('"error"' in text) or text.count("data: ") == 31, "cut in silence"
    assert victim not in await who_answer(front)
    await cluster.until(both, 30)


async def only_others(front, first):
    return first not in await who_answer(front)


async def test_a_service_at_zero_is_woken_and_its_first_requests_are_answered(cluster, front, operator):
    scaling = {"minReplicas": 0, "maxReplicas": 2}
    manifest = talking(cluster, "llm", autoscaling=scaling)
    del manifest["spec"]["replicas"]
    # Nobody scales it up here but this test.
    manifest["metadata"]["annotations"] = {"pagetide.dev/paused": "true"}
    await cluster.create(manifest)
    await cluster.until(lambda: is_listed(front), 20)
    asking = [asyncio.create_task(front.post("llm", seed=i)) for i in range(20)]

    async def wanted():
        return (await cluster.service("llm"))["metadata"]["annotations"].get(ANNOTATION_WAKE)

    await cluster.until(wanted, 10)
    change = {
        "spec": {"autoscaling": {**scaling, "minReplicas": 1}},
        "metadata": {"annotations": {"pagetide.dev/paused": None}},
    }
    await cluster.patch(KIND, "llm", change)
    assert [status for status, _, _ in await asyncio.gather(*asking)] == [200] * 20


async def is_listed(front):
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{front.url}/v1/models") as response:
            return "llm" in await response.text()
    except aiohttp.ClientError:
        return False


def scaled(cluster, **autoscaling):
    """A service that the autoscaler has in its hands."""
    quick = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    manifest = talking(cluster, "llm", autoscaling={"maxReplicas": 3, "behavior": quick, **autoscaling})
    del manifest["spec"]["replicas"]
    manifest["spec"] |= {"drainSeconds": 30, "engine": {"shutdownTimeoutS": 10}}
    return manifest


async def pods_alive(cluster):
    return [p["metadata"]["name"] for p in await cluster.list("Pod") if "deletionTimestamp" not in p["metadata"]]


async def test_a_hundred_first_requests_wake_a_sleeping_service(cluster, front, operator):
    await cluster.create(scaled(cluster, minReplicas=0, idleSeconds=3))

    async def sleeps():
        return (await cluster.condition("llm"))["reason"] == "ScaledToZero" and not await pods_alive(cluster)

    await cluster.until(sleeps, 90, lambda: cluster.service("llm"))
    await cluster.until(lambda: is_listed(front), 20)
    asking = [asyncio.create_task(front.post("llm", seed=i, prompt=uuid.uuid4().hex)) for i in range(100)]
    answers = await asyncio.gather(*asking)
    assert [(status, text) for status, _, text in answers if status != 200] == []


async def test_no_stream_is_cut_while_load_comes_and_goes(cluster, front, operator):
    await cluster.create(scaled(cluster))
    await cluster.ready("llm")
    await cluster.until(lambda: front.answers("llm"), 20)
    wanted, texts = 16, []

    async def client(number):
        while number < wanted:
            texts.append(await whole_stream(front))

    clients = [asyncio.create_task(client(i)) for i in range(wanted)]

    def are(count):
        async def check():
            return len(await pods_alive(cluster)) == count

        return check

    await cluster.until(are(3), 90, lambda: cluster.service("llm"))
    wanted = 3
    await cluster.until(are(1), 120, lambda: cluster.service("llm"))
    wanted = 0
    await asyncio.gather(*clients)
    assert [t for t in texts if t.count("data: ") != 31 or "error" in t] == []


async def whole_stream(front):
    body = {"model": "llm", "prompt": uuid.uuid4().hex, "stream": True, "max_tokens": 30}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{front.url}/v1/completions", json=body) as response,
    ):
        return await response.text()
