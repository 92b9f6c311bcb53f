"""ServiceMonitors: where their definition is there, comes, or goes, while the operator runs."""

import asyncio

import pytest

from pagetide_spec.names import PATH_METRICS, PORT_NAME

pytestmark = pytest.mark.cluster


@pytest.fixture
async def definition(defined):
    return await defined("servicemonitor.yaml")


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
