"""Hundreds of services in one namespace: how soon they are there, and what they cost at rest."""

import asyncio
import time

import pytest

from pagetide_spec.names import KIND

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# What the operator makes for a service.
CHILDREN = ("Deployment", "Service", "ServiceAccount", "PodDisruptionBudget")


@pytest.fixture
async def cleared(cluster):
    """Takes everything away behind the test. To be named before `run_operator`: an operator would make it again."""
    yield
    await remove_all(cluster)


async def remove_all(cluster):
    """Remove the services and what was made for them, and wait until it is gone.

    The children go before their owners: the garbage collector would be at them for a minute, and the next test would
    wait for it.
    """
    # (Old API servers delete no collection of Services.)
    for kind in [kind for kind in (*CHILDREN, "ReplicaSet") if kind != "Service"]:
        await cluster.client.request("DELETE", cluster.path(kind))
    names = [s["metadata"]["name"] for s in await cluster.list("Service")]
    for start in range(0, len(names), 20):
        await asyncio.gather(*(cluster.delete("Service", name) for name in names[start : start + 20]))
    await cluster.client.request("DELETE", cluster.path(KIND))
    await cluster.until(lambda: is_empty(cluster), 600, pause=1)


async def is_empty(cluster):
    """Accounts are not asked for: the namespace's own comes back at once."""
    kinds = [kind for kind in (KIND, *CHILDREN, "ReplicaSet") if kind != "ServiceAccount"]
    return not any([await cluster.list(kind) for kind in kinds])


async def create_many(cluster, count):
    async def create(i):
        made = cluster.manifest(f"llm-{i}", replicas=0)
        if i == 0:
            made["spec"]["model"] = {"uri": "file:///x", "revision": "no such thing for files"}
        await cluster.create(made)

    for start in range(0, count, 20):
        await asyncio.gather(*(create(i) for i in range(start, min(start + 20, count))))


async def settled(cluster, count, condition="Ready", reason="ScaledToZero"):
    """Whether all services but the broken one have this reason for that condition, and that one says why not."""
    conditions = [c for o in await cluster.list(KIND) for c in o.get("status", {}).get("conditions", [])]
    reasons = [c["reason"] for c in conditions if c["type"] == condition]
    return reasons.count(reason) == count - 1 and reasons.count("InvalidSpec") == 1


@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("nodes")
async def test_hundreds_of_services_at_once_and_at_rest(cluster, cleared, run_operator):
    """200 at once converge, one broken among them; 500 at rest cost next to nothing and no write."""
    process = run_operator("--resync-seconds=30")  # ten times as often as usual
    began = time.monotonic()
    await create_many(cluster, 200)
    await cluster.until(lambda: settled(cluster, 200), 180, pause=1)  # a list of hundreds is work for the server, too
    converged = time.monotonic() - began
    for i in range(200, 500, 20):
        await asyncio.gather(*(cluster.create(cluster.manifest(f"llm-{j}", replicas=0)) for j in range(i, i + 20)))
    # The cluster's own controllers are slower than the operator: they must have come to rest, too.
    await cluster.until(lambda: settled(cluster, 500, "Progressing", "Complete"), 300, pause=1)
    versions, used, began = await versions_of(cluster), process.cpu_seconds(), time.monotonic()
    await asyncio.sleep(60)
    share = (process.cpu_seconds() - used) / (time.monotonic() - began)
    assert await versions_of(cluster) == versions
    began = time.monotonic()
    await cluster.create(cluster.manifest("late", replicas=0))
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "late"), 20)
    reaction = time.monotonic() - began
    print(f"200 converged in {converged:.1f} s; 500 at rest: {share:.2%} of a core; a new one in {reaction:.2f} s")
    assert share < 0.05
    assert reaction < 1
    assert await owners(cluster) == {KIND}, "every child has its service as owner"


async def versions_of(cluster):
    kinds = (KIND, *CHILDREN)
    return {(k, o["metadata"]["name"]): o["metadata"]["resourceVersion"] for k in kinds for o in await cluster.list(k)}


async def owners(cluster):
    """Kinds of what owns the children; of the account that each namespace has, nothing does."""
    made = [o["metadata"] for kind in CHILDREN for o in await cluster.list(kind)]
    return {m.get("ownerReferences", [{"kind": None}])[0]["kind"] for m in made if m["name"] != "default"}
