"""Scaling on a real API server with pods that run, with no more rights than the shipped role has.

The pods are fakes that say of their load what the test tells them.
"""

import asyncio
import json
import os
import time
import urllib.request

import pytest
import yaml

from pagetide_operator.cluster.kinds import collection_path
from pagetide_operator.cluster.times import timestamp
from pagetide_spec.names import ANNOTATION_DRAINING, ANNOTATION_WAKE, KIND, SERVER_PORT

pytestmark = pytest.mark.cluster

QUICK = {"scaleDown": {"stabilizationWindowSeconds": 0}}


RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
async def as_shipped(cluster, other_kubeconfig, request):
    """A kubeconfig with the rights of the shipped ClusterRole in the test's namespace, and no others."""
    documents = yaml.safe_load_all((request.config.rootpath / "manifests/rbac.yaml").read_text())
    role = next(d for d in documents if d["kind"] == "ClusterRole")
    path = collection_path(role["apiVersion"], "clusterroles", None) + f"/{role['metadata']['name']}"
    query = {"fieldManager": "pagetide-tests", "force": "true"}
    await cluster.client.request("PATCH", path, query, role, "application/apply-patch+yaml")
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}],
    }
    path = collection_path(binding["apiVersion"], "rolebindings", cluster.namespace)
    await cluster.client.request("POST", path, body=binding)
    await cluster.until(lambda: cluster.find("ServiceAccount", "default"))
    path = cluster.path("ServiceAccount", "default") + "/token"
    answer = await cluster.client.request("POST", path, body={"spec": {"expirationSeconds": 3600}})
    return other_kubeconfig("account", token=answer["status"]["token"])


@pytest.fixture
async def scaled(cluster, nodes, run_operator, as_shipped):
    """`scaled(autoscaling...)`: a ready service `llm`."""
    if not os.environ.get("PAGETIDE_TEST_FAULTS"):
        pytest.skip("pods are not reachable from here")
    run_operator(config=as_shipped)

    async def make(**autoscaling):
        made = cluster.manifest("llm", autoscaling={"maxReplicas": 3, "behavior": QUICK, **autoscaling})
        del made["spec"]["replicas"]
        made["spec"]["drainSeconds"] = 60
        await cluster.create(made)
        await cluster.ready("llm")

    return make


async def alive(cluster):
    return [p for p in await cluster.list("Pod") if "deletionTimestamp" not in p["metadata"]]


async def names(cluster):
    return {p["metadata"]["name"] for p in await alive(cluster)}


async def tell(pod, **load):
    """Set what a pod says of its load."""
    request = urllib.request.Request(f"http://{pod['status']['podIP']}:{SERVER_PORT}/load", json.dumps(load).encode())
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=5).close())


async def wait_for_replicas(cluster, count, seconds=60):
    async def are_there():
        status = (await cluster.service("llm")).get("status", {})
        return (status.get("readyReplicas"), len(await alive(cluster))) == (count, count)

    async def detail():
        return (await cluster.service("llm")).get("status")

    await cluster.until(are_there, seconds, detail)


async def test_load_brings_pods_and_the_one_that_leaves_is_drained_first(cluster, scaled):
    await scaled()
    (pod,) = await alive(cluster)
    # One after the other: of pods that turned ready in the same second, Kubernetes before 1.22 removes any.
    await tell(pod, running=8, waiting=2)
    await wait_for_replicas(cluster, 2)
    await tell(pod, running=8, waiting=9)
    await wait_for_replicas(cluster, 3)
    for each in await alive(cluster):
        await tell(each, running=1, waiting=0)
    before = await names(cluster)

    async def leaver():
        found = [p for p in await alive(cluster) if ANNOTATION_DRAINING in (p["metadata"].get("annotations") or {})]
        return found[0] if found else None

    leaving = await cluster.until(leaver, 30)
    await asyncio.sleep(7)  # it is looked at again meanwhile
    assert await names(cluster) == before, "a stream runs on it"
    await tell(leaving, running=0)

    async def has_left():
        return await names(cluster) == before - {leaving["metadata"]["name"]}

    await cluster.until(has_left, 30)
    found = await cluster.service("llm")
    told = found["status"]["autoscaling"]
    assert [(d["from"], d["to"]) for d in told["decisions"]][:3] == [(1, 2), (2, 3), (3, 2)]
    assert [d["inputs"]["asks"]["batch"] for d in told["decisions"]][:2] == [2, 3]
    assert {"Scaled"} <= {e["reason"] for e in await cluster.list("Event")}
    reasons = {c["type"]: (c["status"], c["reason"]) for c in found["status"]["conditions"]}
    assert reasons["ScalingActive"] == ("True", "Measured")


async def test_it_sleeps_and_a_gateways_word_wakes_it_at_once(cluster, scaled):
    await scaled(minReplicas=0, idleSeconds=3)
    await wait_for_replicas(cluster, 0)
    ready = await cluster.condition("llm")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    began = time.monotonic()
    await cluster.patch(KIND, "llm", {"metadata": {"annotations": {ANNOTATION_WAKE: timestamp(time.time())}}})

    async def is_wanted():
        return (await cluster.service("llm"))["status"]["desiredReplicas"] == 1

    await cluster.until(is_wanted, 10)
    assert time.monotonic() - began < 3
    await wait_for_replicas(cluster, 1)


async def test_spec_replicas_is_still_scaled_by_whoever_likes(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await cluster.patch(KIND, "llm", {"spec": {"replicas": 2}}, "/scale")
    await wait_for_replicas(cluster, 2)
    await cluster.patch(KIND, "llm", {"spec": {"replicas": 0}}, "/scale")
    await wait_for_replicas(cluster, 0)
