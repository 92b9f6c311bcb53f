"""The life of a service on a real API server: made, kept, changed, scaled, deleted."""

import asyncio
import os

import pytest

from pagetide_spec.names import (
    ANNOTATION_APPLIED,
    ANNOTATION_PAUSED,
    ANNOTATION_TEMPLATE,
    KIND,
    LABEL_NAME,
    LABEL_SERVICE,
)

pytestmark = pytest.mark.cluster

OURS = (ANNOTATION_APPLIED, ANNOTATION_TEMPLATE)
CHILDREN = [
    ("Deployment", "llm"),
    ("Service", "llm"),
    ("Service", "llm-replicas"),
    ("ServiceAccount", "llm"),
    ("PodDisruptionBudget", "llm"),
]


async def pods_of(cluster):
    """uids of the pods that are not on their way out."""
    return {p["metadata"]["uid"] for p in await cluster.list("Pod") if "deletionTimestamp" not in p["metadata"]}


async def versions_of(cluster):
    """resourceVersion of everything of ours in the namespace."""
    kinds = [KIND, *dict(CHILDREN)]
    return {(k, o["metadata"]["name"]): o["metadata"]["resourceVersion"] for k in kinds for o in await cluster.list(k)}


async def test_a_service_gets_its_children_and_becomes_ready(cluster, nodes, operator):
    made = await cluster.create(cluster.manifest("llm", replicas=2))
    await cluster.ready("llm")
    for kind, name in CHILDREN:
        (owner,) = (await cluster.get(kind, name))["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
    status = (await cluster.service("llm"))["status"]
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["url"] == f"http://llm.{cluster.namespace}.svc"
    reasons = {e["reason"] for e in await cluster.list("Event") if e["involvedObject"]["kind"] == KIND}
    assert {"Starting", "Ready"} <= reasons


async def test_capacity_is_what_the_ready_servers_say_together(cluster, nodes, operator):
    """An operator beside the cluster reaches its pods where their network is this machine's."""
    if not os.environ.get("PAGETIDE_TEST_FAULTS"):
        pytest.skip("pods are not reachable from here")
    await cluster.create(cluster.manifest("llm", replicas=2))

    async def capacity():
        return (await cluster.service("llm")).get("status", {}).get("capacity")

    async def is_known():
        return await capacity() == {"kvTokens": 8192, "maxConcurrency": 16}

    await cluster.until(is_known, 40)
    await cluster.patch(KIND, "llm", {"spec": {"replicas": 0}}, "/scale")

    async def is_gone():
        return await capacity() is None

    await cluster.until(is_gone, 40)


async def test_at_rest_nothing_is_written(cluster, nodes, run_operator):
    run_operator("--resync-seconds=1")
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await cluster.until(lambda: _is(cluster, "Progressing", "Complete"))
    before = await versions_of(cluster)
    await asyncio.sleep(5)  # several relists and looks at the service
    assert await versions_of(cluster) == before


async def _is(cluster, condition, reason, name="llm"):
    return (await cluster.condition(name, condition))["reason"] == reason


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        pytest.param("Deployment", {"spec": {"replicas": 3}}, id="replicas of a Deployment"),
        pytest.param(
            "Deployment",
            {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}},
            id="template of a Deployment",
        ),
        pytest.param("Service", {"spec": {"selector": {LABEL_NAME: "x"}}}, id="selector of a Service"),
        pytest.param(
            "Deployment", {"metadata": {"annotations": {ANNOTATION_TEMPLATE: None}}}, id="bookkeeping of a Deployment"
        ),
    ],
)
async def test_drift_is_repaired(cluster, operator, kind, patch):
    await cluster.create(cluster.manifest("llm"))
    right = await cluster.until(lambda: cluster.find(kind, "llm"))
    await cluster.patch(kind, "llm", patch)

    async def is_right_again():
        found = await cluster.get(kind, "llm")
        kept = [o["metadata"]["annotations"].get(k) for k in OURS for o in (found, right)]
        return found["spec"] == right["spec"] and kept[::2] == kept[1::2]

    await cluster.until(is_right_again)


@pytest.mark.parametrize(("kind", "name"), CHILDREN)
async def test_a_deleted_child_comes_back(cluster, operator, kind, name):
    await cluster.create(cluster.manifest("llm", replicas=0))
    gone = (await cluster.until(lambda: cluster.find(kind, name)))["metadata"]["uid"]
    await cluster.delete(kind, name)

    async def is_back():
        found = await cluster.find(kind, name)
        return found is not None and found["metadata"]["uid"] != gone

    await cluster.until(is_back)


async def test_a_child_that_lost_its_labels_gets_them_back(cluster, operator):
    await cluster.create(cluster.manifest("llm", replicas=0))
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "llm"))
    await cluster.patch("Service", "llm", {"metadata": {"labels": {LABEL_SERVICE: None}}})

    async def has_them():
        return (await cluster.get("Service", "llm"))["metadata"]["labels"].get(LABEL_SERVICE) == "llm"

    await cluster.until(has_them)


async def test_changed_settings_roll_the_pods(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    old = await pods_of(cluster)
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})

    async def is_rolled():
        new = await pods_of(cluster)
        return new and not new & old and await cluster.is_ready("llm")

    await cluster.until(is_rolled, 40)
    container = (await cluster.get("Deployment", "llm"))["spec"]["template"]["spec"]["containers"][0]
    assert "--max-num-seqs=7" in container["args"]


async def test_scaling_through_the_scale_subresource_restarts_nothing(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    old = await pods_of(cluster)
    await cluster.patch(KIND, "llm", {"spec": {"replicas": 2}}, "/scale")

    async def is_scaled():
        return (await cluster.service("llm"))["status"]["readyReplicas"] == 2

    await cluster.until(is_scaled, 40)
    assert old < await pods_of(cluster)
    scale = await cluster.client.request("GET", cluster.path(KIND, "llm") + "/scale")
    assert scale["status"]["replicas"] == 2
    assert "pagetide.dev/inferenceservice=llm" in scale["status"]["selector"]


async def test_a_change_of_something_else_keeps_replicas(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.patch(KIND, "llm", {"spec": {"replicas": 2}}, "/scale")
    await cluster.ready("llm")
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})
    await cluster.ready("llm")
    assert (await cluster.get("Deployment", "llm"))["spec"]["replicas"] == 2


async def test_a_deleted_service_takes_its_children_with_it(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await cluster.delete(KIND, "llm")

    async def is_empty():
        left = [o for kind in (*dict(CHILDREN), "Pod") for o in await cluster.list(kind)]
        return not [o for o in left if o["metadata"].get("labels", {}).get("pagetide.dev/inferenceservice")]

    await cluster.until(is_empty, 40)


async def test_a_service_made_again_under_the_same_name_gets_children_of_its_own(cluster, nodes, operator):
    for _ in range(3):
        await cluster.create(cluster.manifest("llm", replicas=0))
        await cluster.delete(KIND, "llm")  # in the midst of its creation, or before
    made = await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm", 60)
    for kind, name in CHILDREN:
        owners = (await cluster.get(kind, name))["metadata"]["ownerReferences"]
        assert [o["uid"] for o in owners] == [made["metadata"]["uid"]]


async def test_restarts_and_upgrades_of_the_operator_restart_no_pod(cluster, nodes, run_operator):
    spec = {"image": None}
    made = cluster.manifest("llm", **spec)
    del made["spec"]["image"]
    first = run_operator("--image=python:3.12-slim")
    await cluster.create(made)
    await cluster.ready("llm")
    pods, versions = await pods_of(cluster), await versions_of(cluster)
    assert first.stop() == 0
    second = run_operator("--image=python:3.13-slim", "--resync-seconds=1")
    await asyncio.sleep(4)  # time enough to do wrong
    assert second.process.poll() is None
    assert (await pods_of(cluster), await versions_of(cluster)) == (pods, versions)
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})

    async def has_new_image():
        template = (await cluster.get("Deployment", "llm"))["spec"]["template"]
        return template["spec"]["containers"][0]["image"] == "python:3.13-slim"

    await cluster.until(has_new_image)


async def test_a_paused_service_is_left_alone(cluster, operator):
    made = cluster.manifest("llm", replicas=0)
    made["metadata"]["annotations"] = {ANNOTATION_PAUSED: "true"}
    await cluster.create(made)
    await cluster.until(lambda: _is(cluster, "Progressing", "Paused"))
    assert await cluster.find("Deployment", "llm") is None
    await cluster.patch(KIND, "llm", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await cluster.until(lambda: cluster.find("Deployment", "llm"))
