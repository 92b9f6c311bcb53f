"""ServiceMonitors: where their definition is there, comes, or goes, while the operator runs."""

import asyncio

import pytest
import yaml

from pagetide_operator.client import ApiError
from pagetide_operator.kinds import collection_path
from pagetide_spec.names import PATH_METRICS, PORT_NAME

pytestmark = pytest.mark.cluster

DEFINITIONS = collection_path("apiextensions.k8s.io/v1", "customresourcedefinitions", None)


@pytest.fixture
async def definition(cluster, request):
    """Install and remove the definition; a cluster that has its own keeps it."""
    text = (request.path.parent / "servicemonitor.yaml").read_text()
    manifest = yaml.safe_load(text)
    path = f"{DEFINITIONS}/{manifest['metadata']['name']}"

    async def is_there():
        try:
            await cluster.client.request("GET", path)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    if await is_there():
        pytest.skip("this cluster has ServiceMonitors of its own")

    class Definition:
        async def install(self):
            await cluster.client.request("POST", DEFINITIONS, body=manifest)
            await cluster.until(lambda: listed(cluster))

        async def remove(self):
            if await is_there():
                await cluster.client.request("DELETE", path)

            async def is_gone():
                return not await is_there()

            await cluster.until(is_gone)

    yield Definition()
    await Definition().remove()


async def listed(cluster):
    """Whether the API server serves the kind by now."""
    try:
        await cluster.list("ServiceMonitor")
    except ApiError:
        return False
    return True


async def test_a_service_has_a_monitor_that_selects_its_pods_once(cluster, definition, run_operator):
    await definition.install()
    run_operator("--resync-seconds=1")
    await cluster.create(cluster.manifest("llm", replicas=0))
    monitor = await cluster.until(lambda: cluster.find("ServiceMonitor", "llm"))
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (PORT_NAME, PATH_METRICS)
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    selected = [
        s["metadata"]["name"] for s in await cluster.list("Service") if wanted <= s["metadata"]["labels"].items()
    ]
    assert selected == ["llm-replicas"]
    # Nobody watches it: the relist sees that it is gone, or changed.
    await cluster.patch("ServiceMonitor", "llm", {"spec": {"endpoints": []}})

    async def is_right():
        found = await cluster.find("ServiceMonitor", "llm")
        return found and found["spec"] == monitor["spec"]

    await cluster.until(is_right)
    await cluster.delete("ServiceMonitor", "llm")
    await cluster.until(is_right)


async def test_the_definition_may_come_and_go_while_services_serve(cluster, nodes, definition, run_operator):
    process = run_operator("--resync-seconds=1")
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await definition.install()
    await cluster.until(lambda: cluster.find("ServiceMonitor", "llm"))
    await definition.remove()
    await asyncio.sleep(3)  # some relists without it
    await cluster.create(cluster.manifest("another"))
    await cluster.ready("another")
    assert await cluster.is_ready("llm")
    assert process.process.poll() is None
