"""The model cache on a real cluster: the Job, its claim and its Secret."""

import asyncio

import pytest

from pagetide_spec.names import ANNOTATION_PREFETCHED, COMPONENT_PREFETCH, KIND, LABEL_COMPONENT

pytestmark = pytest.mark.cluster

HUB = {"uri": "hf://org/name"}


def cached(cluster, env=None, **spec):
    return cluster.manifest("llm", env, **{"model": HUB, "cache": {"size": "1Mi"}, **spec})


async def shows(cluster, reason):
    async def has_reason():
        return (await cluster.condition("llm"))["reason"] == reason

    await cluster.until(has_reason, 40, lambda: cluster.condition("llm"))
    return (await cluster.condition("llm"))["message"]


async def no_job_is_left(cluster):
    pods = [p for p in await cluster.list("Pod") if p["metadata"]["labels"][LABEL_COMPONENT] == COMPONENT_PREFETCH]
    return not await cluster.list("Job") and not pods


async def test_replicas_find_the_model_in_the_cache_and_it_is_fetched_once(cluster, nodes, operator):
    made = await cluster.create(cached(cluster))
    await cluster.until(lambda: cluster.list("Job"))
    (job,) = await cluster.list("Job")
    assert job["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    await cluster.ready("llm", 60)
    assert (await cluster.get("Deployment", "llm"))["metadata"]["annotations"][ANNOTATION_PREFETCHED]
    await cluster.until(lambda: no_job_is_left(cluster))
    # Ready counts servers alone, and a changed setting of theirs fetches nothing.
    assert (await cluster.service("llm"))["status"]["replicas"] == 1
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})
    seen = []

    async def is_rolled():
        seen.extend(await cluster.list("Job"))
        return await cluster.is_ready("llm")

    await cluster.until(is_rolled, 60)
    assert seen == []


async def test_what_keeps_the_model_from_coming_is_told_and_mended_without_a_restart(cluster, nodes, operator):
    model = {**HUB, "tokenSecretRef": {"name": "hub"}}
    await cluster.create(cached(cluster, model=model))
    message = await shows(cluster, "CreateContainerConfigError")
    assert message.startswith("fetching the model: ")
    assert "hub" in message
    assert await cluster.find("Deployment", "llm") is None  # nothing holds a GPU meanwhile
    await cluster.create({"kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "t"}})
    await cluster.ready("llm", 60)


async def test_a_model_that_is_not_there_leaves_the_old_one_serving(cluster, nodes, operator):
    await cluster.create(cached(cluster, cache={"pvc": "shared"}))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    await cluster.create({"kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim})
    await cluster.ready("llm", 60)
    before = await cluster.get("Deployment", "llm")
    template = cluster.manifest("llm", env={"FAKE_FETCH": "2"})["spec"]["template"]
    change = {"model": {"uri": "hf://org/missing"}, "template": template}
    await cluster.patch(KIND, "llm", {"spec": change})

    async def is_told():
        found = await cluster.condition("llm", "Progressing")
        return found["reason"] == "PrefetchFailed" and "exit code 2: no such model" in found["message"]

    async def is_an_event():
        return "PrefetchFailed" in {e["reason"] for e in await cluster.list("Event")}

    await cluster.until(is_told, 40, lambda: cluster.condition("llm", "Progressing"))
    await cluster.until(is_an_event, 10)
    assert (await cluster.condition("llm"))["status"] == "True"
    after = await cluster.get("Deployment", "llm")
    assert after["spec"]["template"] == before["spec"]["template"]
    await cluster.patch(KIND, "llm", {"spec": {"model": HUB, "template": cluster.manifest("llm")["spec"]["template"]}})
    await cluster.until(lambda: no_job_is_left(cluster), 120)
    await cluster.ready("llm")


async def test_a_service_that_goes_while_its_model_is_fetched_leaves_nothing(cluster, nodes, operator):
    await cluster.create(cached(cluster, env={"FAKE_FETCH": "1"}))
    await shows(cluster, "PrefetchFailed")
    await cluster.delete(KIND, "llm")
    await cluster.until(lambda: no_job_is_left(cluster), 60)
    await asyncio.sleep(1)  # nor does anything come back
    assert await no_job_is_left(cluster)
