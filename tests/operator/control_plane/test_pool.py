"""InferencePools: made for services that ask, where their definition is there, comes, or goes."""

import pytest

from pagetide_spec.names import SERVER_PORT

pytestmark = pytest.mark.cluster

CONDITION = "InferencePoolApplied"


@pytest.fixture
async def definition(defined):
    return await defined("inferencepool.yaml")


def asks(**more):
    return {"endpointPicker": {"name": "picker", **more}}


async def pool_of(cluster, **expected):
    """The pool, once its reference to the picker has these fields."""

    async def found():
        pool = await cluster.find("InferencePool", "llm")
        return pool if pool and expected.items() <= pool["spec"].get("endpointPickerRef", {}).items() else None

    return await cluster.until(found)


async def says(cluster, status, reason):
    async def does():
        found = await cluster.condition("llm", CONDITION)
        return (found["status"], found["reason"]) == (status, reason)

    await cluster.until(does, detail=lambda: cluster.condition("llm", CONDITION))


async def test_a_pool_is_made_repaired_changed_and_taken_away_with_the_wish(cluster, definition, run_operator):
    await definition.install()
    run_operator("--resync-seconds=1")
    await cluster.create(cluster.manifest("llm", replicas=0, inferencePool=asks()))
    await cluster.create(cluster.manifest("plain", replicas=0))
    pool = await pool_of(cluster, name="picker", port={"number": 9002}, failureMode="FailClose")
    assert pool["spec"]["targetPorts"] == [{"number": SERVER_PORT}]
    await says(cluster, "True", "Applied")
    # Nobody watches it: the relist sees that it was changed, or is gone.
    await cluster.patch("InferencePool", "llm", {"spec": {"endpointPickerRef": {"failureMode": "FailOpen"}}})
    await pool_of(cluster, failureMode="FailClose")
    await cluster.delete("InferencePool", "llm")
    again = await pool_of(cluster, name="picker")
    assert again["metadata"]["uid"] != pool["metadata"]["uid"]
    await cluster.patch("InferenceService", "llm", {"spec": {"inferencePool": asks(port=1, failureMode="FailOpen")}})
    await pool_of(cluster, port={"number": 1}, failureMode="FailOpen")
    await cluster.patch("InferenceService", "llm", {"spec": {"inferencePool": None}})

    async def is_gone():
        kinds = [c["type"] for c in (await cluster.service("llm"))["status"]["conditions"]]
        return await cluster.find("InferencePool", "llm") is None and CONDITION not in kinds

    await cluster.until(is_gone)
    assert await cluster.list("InferencePool") == []


async def test_a_settled_pool_is_left_alone(cluster, definition, run_operator):
    """The server fills in defaults; they are no difference."""
    await definition.install()
    await cluster.create(cluster.manifest("llm", replicas=0, inferencePool=asks()))
    operator = run_operator("--resync-seconds=1")
    await says(cluster, "True", "Applied")
    version = (await pool_of(cluster))["metadata"]["resourceVersion"]
    await cluster.create(cluster.manifest("later", replicas=0))

    async def is_seen():
        return (await cluster.condition("later"))["reason"]

    await cluster.until(is_seen)
    assert (await pool_of(cluster))["metadata"]["resourceVersion"] == version
    assert operator.log.read_text().count("apply InferencePool") == 1


async def test_a_pool_of_somebody_else_is_left_alone_and_told(cluster, definition, run_operator):
    await definition.install()
    spec = {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 1}], "endpointPickerRef": {"name": "p"}}
    theirs = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "llm"}}
    await cluster.create({**theirs, "spec": spec})
    await cluster.create(cluster.manifest("llm", replicas=0, inferencePool=asks()))
    run_operator()
    await says(cluster, "False", "NameConflict")
    assert (await pool_of(cluster))["spec"]["targetPorts"] == [{"number": 1}]
    assert await cluster.find("Deployment", "llm")


async def test_the_pods_of_a_pool_serve_before_the_extension_is_there_and_after(
    cluster, nodes, definition, run_operator
):
    process = run_operator("--resync-seconds=1")
    await cluster.create(cluster.manifest("llm", inferencePool=asks()))
    await cluster.ready("llm")
    await says(cluster, "False", "ExtensionNotInstalled")
    await definition.install()
    pool = await pool_of(cluster)
    await says(cluster, "True", "Applied")
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    (pod,) = (p for p in await cluster.list("Pod") if wanted <= p["metadata"]["labels"].items())
    assert "--metrics-compat=vllm" in pod["spec"]["containers"][0]["args"]
    await definition.remove()
    await says(cluster, "False", "ExtensionNotInstalled")
    assert await cluster.is_ready("llm")
    assert process.process.poll() is None
