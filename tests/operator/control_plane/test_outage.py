"""An API server that goes away, or falls silent: what the operator then does, and afterwards."""

import asyncio
import contextlib
import time
import urllib.parse

import pytest

from pagetide_spec.names import KIND

pytestmark = pytest.mark.cluster


class Gate:
    """A TCP forwarder to the API server that can be shut, as if the server were gone, or lose single connections."""

    def __init__(self, host):
        parts = urllib.parse.urlsplit(host)
        self.target, self.is_open, self._writers = (parts.hostname, parts.port), True, set()
        self._asked, self._mute = {}, set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.shut()
        self._server.close()

    def shut(self):
        self.is_open = False
        for writer in self._writers:
            writer.close()

    def mute_watches(self, quiet):
        """Pass on no answer any more where nothing was asked for so many seconds: the connections stay open."""
        self._mute |= {key for key, at in self._asked.items() if time.monotonic() - at > quiet}
        return len(self._mute)

    async def _accept(self, reader, writer):
        self._writers.add(writer)
        if not self.is_open:
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        self._writers.add(there_writer)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._ask(reader, there_writer), self._answer(there_reader, writer, reader))

    async def _ask(self, reader, writer):
        while data := await reader.read(65536):
            self._asked[reader] = time.monotonic()
            writer.write(data)
            await writer.drain()
        self._asked.pop(reader, None)
        writer.close()

    async def _answer(self, reader, writer, asker):
        while data := await reader.read(65536):
            if asker not in self._mute:
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_it_survives_an_outage_of_the_api_server(cluster, run_operator, other_kubeconfig):
    async with Gate(cluster.client._configuration.host) as gate:
        process = run_operator(config=other_kubeconfig("gate", server=gate.url))
        await cluster.create(cluster.manifest("one", replicas=0))
        await cluster.until(lambda: cluster.find("PodDisruptionBudget", "one"))
        gate.shut()
        await cluster.create(cluster.manifest("two", replicas=0))
        await cluster.delete("Service", "one")
        await asyncio.sleep(3)
        assert process.process.poll() is None
        gate.is_open = True
        await cluster.until(lambda: cluster.find("PodDisruptionBudget", "two"), 60)
        await cluster.until(lambda: cluster.find("Service", "one"), 60)


async def test_a_rollout_goes_on_after_an_outage_in_its_midst(cluster, nodes, run_operator, other_kubeconfig):
    async with Gate(cluster.client._configuration.host) as gate:
        run_operator(config=other_kubeconfig("gate", server=gate.url))
        await cluster.create(cluster.manifest("llm", replicas=2))
        await cluster.ready("llm")
        await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})
        await cluster.until(lambda: has_argument(cluster, "--max-num-seqs=7"))
        gate.shut()
        await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 8}}})
        await asyncio.sleep(3)
        assert await has_argument(cluster, "--max-num-seqs=7")
        gate.is_open = True
        await cluster.until(lambda: has_argument(cluster, "--max-num-seqs=8"), 60)
        await cluster.ready("llm", 60)


async def has_argument(cluster, argument):
    template = (await cluster.get("Deployment", "llm"))["spec"]["template"]
    return argument in template["spec"]["containers"][0]["args"]


async def test_a_watch_that_dies_without_a_sign_is_noticed_and_costs_little(cluster, run_operator, other_kubeconfig):
    """Its connection stays open, and nothing comes any more: the relist sees what it does not."""
    async with Gate(cluster.client._configuration.host) as gate:
        config = other_kubeconfig("gate", server=gate.url)
        process = run_operator("--resync-seconds=2", config=config)
        await cluster.create(cluster.manifest("one", replicas=0))
        await cluster.until(lambda: cluster.find("PodDisruptionBudget", "one"))
        await asyncio.sleep(6)  # the lists of each relist use their connections again, the watches' stand still
        assert gate.mute_watches(4) >= 7
        await cluster.create(cluster.manifest("two", replicas=0))
        await cluster.until(lambda: cluster.find("PodDisruptionBudget", "two"), 10)  # by the relist
        number = 0
        while process.process.poll() is None:
            number += 1
            assert number < 100, "the dead watch was not noticed"
            await cluster.patch(KIND, "one", {"metadata": {"annotations": {"number": str(number)}}})
            await asyncio.sleep(0.3)
        assert process.process.returncode == 1
        assert f"the watch of {KIND}" in process.log.read_text()
        run_operator("--resync-seconds=60", config=config)  # as a Deployment starts it again
        await cluster.create(cluster.manifest("three", replicas=0))
        await cluster.until(lambda: cluster.find("PodDisruptionBudget", "three"), 20)
