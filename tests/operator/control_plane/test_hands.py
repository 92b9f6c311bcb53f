"""What people do by hand to what is the operator's, and how that ends."""

import asyncio
import json

import pytest

from pagetide_spec.names import ANNOTATION_APPLIED, ANNOTATION_FINGERPRINT, API_VERSION, KIND

pytestmark = pytest.mark.cluster


async def uids(cluster, kind):
    return {o["metadata"]["uid"] for o in await cluster.list(kind) if "deletionTimestamp" not in o["metadata"]}


async def replace(cluster, kind, name, change):
    """`kubectl replace`: read, change, and write the whole of it."""
    found = await cluster.get(kind, name)
    change(found)
    found["metadata"].pop("resourceVersion")
    return await cluster.client.request("PUT", cluster.path(kind, name), body=found)


async def test_notes_lost_by_replace_come_back_and_no_pod_restarts(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    pods = await uids(cluster, "Pod")

    def lose(found):
        found["metadata"]["annotations"] = {}

    await replace(cluster, "Deployment", "llm", lose)

    async def has_notes():
        return {ANNOTATION_APPLIED, ANNOTATION_FINGERPRINT} <= set(
            (await cluster.get("Deployment", "llm"))["metadata"].get("annotations", {})
        )

    await cluster.until(has_notes)
    await asyncio.sleep(1)
    assert await uids(cluster, "Pod") == pods


async def test_a_status_that_was_wiped_is_written_again(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    found = await cluster.service("llm")
    await cluster.client.request("PUT", cluster.path(KIND, "llm") + "/status", body={**found, "status": {}})
    await cluster.ready("llm")
    assert (await cluster.service("llm"))["status"]["replicas"] == 1


async def test_a_status_that_another_has_written_meanwhile_is_no_trouble(cluster, nodes, operator):
    """Each write makes the operator's own, over the state that it read, a conflict; it decides again."""
    await cluster.create(cluster.manifest("llm"))
    for number in range(30):
        condition = {"type": "Seen", "status": "True", "reason": f"N{number}", "message": "by somebody else"}
        condition |= {"lastTransitionTime": "2030-01-01T00:00:00Z"}
        found = await cluster.service("llm")
        others = [c for c in found.get("status", {}).get("conditions", []) if c["type"] != "Seen"]
        await cluster.patch(KIND, "llm", {"status": {"conditions": [*others, condition]}}, "/status")
        await asyncio.sleep(0.1)
    await cluster.ready("llm")
    assert (await cluster.condition("llm", "Seen"))["reason"] == "N29"


async def test_children_that_outlived_their_service_are_taken_over_without_a_restart(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    pods = await uids(cluster, "Pod")
    await cluster.client.request("DELETE", cluster.path(KIND, "llm"), body={"propagationPolicy": "Orphan"})

    async def is_gone():
        return await cluster.find(KIND, "llm") is None

    await cluster.until(is_gone)
    assert await uids(cluster, "Pod") == pods
    made = await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"):
        owners = (await cluster.get(kind, "llm"))["metadata"]["ownerReferences"]
        assert [o["uid"] for o in owners] == [made["metadata"]["uid"]]
    assert await uids(cluster, "Pod") == pods


async def test_a_deployment_scaled_or_undone_by_hand_comes_back(cluster, nodes, operator, kubectl):
    space = f"--namespace={cluster.namespace}"
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})
    await cluster.until(lambda: has_argument(cluster, "--max-num-seqs=7"))
    await cluster.ready("llm")
    await kubectl("rollout", "undo", space, "deployment/llm")
    await cluster.until(lambda: has_argument(cluster, "--max-num-seqs=7"))
    await kubectl("scale", space, "deployment/llm", "--replicas=3")

    async def is_one():
        return (await cluster.get("Deployment", "llm"))["spec"]["replicas"] == 1

    await cluster.until(is_one)
    await cluster.ready("llm")


async def has_argument(cluster, argument):
    template = (await cluster.get("Deployment", "llm"))["spec"]["template"]
    return argument in template["spec"]["containers"][0].get("args", [])


async def test_a_secret_that_is_missing_is_named_and_its_coming_is_enough(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm", apiKeySecretRef={"name": "keys"}))

    async def is_told():
        found = await cluster.condition("llm")
        return found["reason"] == "CreateContainerConfigError" and "keys" in found["message"]

    await cluster.until(is_told, 30, lambda: cluster.condition("llm"))
    await cluster.create({"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"api-key": "k"}})
    await cluster.ready("llm", 60)


async def test_a_server_side_apply_of_users_keeps_what_they_own(cluster, operator, kubectl):
    """The service itself is the users': the operator owns its status and no field of its spec."""
    made = json.dumps(cluster.manifest("llm", replicas=0))
    await kubectl("apply", "--server-side", f"--namespace={cluster.namespace}", "-f", "-", stdin=made)
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "llm"))

    async def has_status():
        return (await cluster.service("llm")).get("status")

    await cluster.until(has_status)
    entries = (await cluster.service("llm"))["metadata"]["managedFields"]
    of_operator = [set(e["fieldsV1"]) for e in entries if e["manager"] == "pagetide-operator"]
    assert of_operator == [{"f:status"}]


async def test_a_horizontal_pod_autoscaler_scales_the_service(cluster, nodes, operator, kubectl):
    """Through the scale subresource, as KEDA does it, too; by the bounds alone, as there are no metrics here."""
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    old = await uids(cluster, "Pod")
    autoscaler = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llm"},
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": "llm"},
            "minReplicas": 2,
            "maxReplicas": 3,
        },
    }
    await kubectl("apply", f"--namespace={cluster.namespace}", "-f", "-", stdin=json.dumps(autoscaler))

    async def has_two():
        return (await cluster.service("llm"))["status"]["readyReplicas"] == 2

    await cluster.until(has_two, 60)
    assert (await cluster.service("llm"))["spec"]["replicas"] == 2
    await cluster.patch(KIND, "llm", {"spec": {"drainSeconds": 2}})  # a change of something else

    async def is_rolled():
        new = await uids(cluster, "Pod")
        return len(new) == 2 and not new & old

    await cluster.until(is_rolled, 60)
    assert (await cluster.get("Deployment", "llm"))["spec"]["replicas"] == 2
