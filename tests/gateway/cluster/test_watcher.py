"""The gateway's view of a cluster, against an API server on a loopback socket whose every move a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter

import pytest
from aiohttp import web

from pagetide_gateway.cluster import kube_api
from pagetide_gateway.cluster.kube_api import KubeApi
from pagetide_gateway.cluster.kube_config import KubeConfig
from pagetide_gateway.cluster.watcher import ClusterWatcher
from pagetide_gateway.replicas.registry import Registry
from pagetide_spec.names import ANNOTATION_DRAINING, ANNOTATION_WAKE, LABEL_SERVICE, PLURAL

from .resources import pod, service


class FakeApi:
    """Lists, watches and patches, in memory. `mute`: watches say nothing more; `broken`: every request is refused."""

    def __init__(self):
        self.objects: dict[str, dict[str, dict]] = {PLURAL: {}, "pods": {}}
        self.queues: dict[str, list[asyncio.Queue]] = {PLURAL: [], "pods": []}
        self.mute, self.broken = False, 0
        self.lists: Counter = Counter()
        self.refused: Counter = Counter()
        self.patches: list[tuple[str, dict]] = []
        self.queries: list[tuple[str, dict]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        plural = "pods" if "/pods" in request.path else PLURAL
        if self.broken:
            self.refused[plural] += 1
            return web.json_response({"message": "go away"}, status=self.broken)
        self.queries.append((request.path, dict(request.query)))
        if request.method == "PATCH":
            self.patches.append((request.path, await request.json()))
            return web.json_response({})
        if "watch" in request.query:
            return await self._watch(request, plural)
        self.lists[plural] += 1
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(self.objects[plural].values())})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue = asyncio.Queue()
        self.queues[plural].append(queue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while event := await queue.get():
                    await response.write(json.dumps(event).encode() + b"\n")
        self.queues[plural].remove(queue)
        return response

    def put(self, plural: str, item: dict) -> None:
        self.objects[plural][self._key(item)] = item
        self.tell(plural, {"type": "MODIFIED", "object": item})

    def delete(self, plural: str, item: dict) -> None:
        del self.objects[plural][self._key(item)]
        self.tell(plural, {"type": "DELETED", "object": item})

    def tell(self, plural: str, event: dict | None) -> None:
        for queue in self.queues[plural]:
            if not self.mute:
                queue.put_nowait(event)

    @staticmethod
    def _key(item: dict) -> str:
        return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


@pytest.fixture
async def api():
    fake = FakeApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def watch(api, until, monkeypatch):
    """`await watch()` -> a registry that is kept as the fake cluster is."""
    monkeypatch.setattr("pagetide_gateway.cluster.watcher._FIRST_PAUSE_S", 0.05)
    async with contextlib.AsyncExitStack() as stack:

        async def start(registry: Registry | None = None, namespaces=(), synced: bool = True) -> Registry:
            registry = Registry() if registry is None else registry
            client = KubeApi(KubeConfig(api.url, None, lambda: "tok", "test"))
            stack.push_async_callback(client.close)
            watcher = ClusterWatcher(client, registry, namespaces)
            task = asyncio.create_task(watcher.run())
            stack.callback(task.cancel)
            if synced:
                await until(lambda: watcher.is_synced and all(api.queues.values()))
                await asyncio.sleep(0.1)
            return registry

        yield start


async def test_services_and_pods_come_and_go(api, watch, until):
    api.put(PLURAL, service("m"))
    api.put("pods", pod("p", "m"))
    registry = await watch()
    found = registry.find("m")
    assert {r.url for r in found.replicas.values()} == {"http://10.0.0.1:8000"}
    api.put("pods", pod("q", "m", ip="10.0.0.2"))
    await until(lambda: set(found.replicas) == {"p", "q"})
    before = found.replicas["q"]
    api.put("pods", pod("q", "m", ip="10.0.0.2", metadata={"annotations": {ANNOTATION_DRAINING: "now"}}))
    await until(lambda: before.draining)
    assert found.replicas["q"] is before
    api.delete("pods", pod("q", "m"))
    await until(lambda: set(found.replicas) == {"p"})
    api.put("pods", pod("p", "m", ready="False"))
    await until(lambda: not found.replicas["p"].is_admitted)
    api.delete(PLURAL, service("m"))
    await until(lambda: registry.find("m") is None)


async def test_names_that_collide_are_told_apart_by_namespace(api, watch, until):
    api.put(PLURAL, service("m", "a"))
    registry = await watch()
    assert registry.models() == ["m"]
    api.put(PLURAL, service("other", "b", served="m"))
    await until(lambda: sorted(registry.models()) == ["a/m", "b/other"])
    assert registry.find("m") is None
    assert registry.keys_of("m") == ["a/m", "b/other"]
    assert registry.find("b/other").served == "m"
    api.delete(PLURAL, service("m", "a"))
    await until(lambda: registry.models() == ["m"])
    assert registry.find("m").key == "b/other"
    assert registry.find("b/other").key == "b/other", "the long name always works"


async def test_only_the_named_namespaces_are_asked_for(api, watch, until):
    api.queues = {PLURAL: [None, None], "pods": [None, None]}  # of no interest here
    await watch(namespaces=["a", "b"], synced=False)
    # Each is listed and then watched.
    await until(lambda: len(api.queries) >= 8)
    paths = {path for path, _ in api.queries}
    assert paths == {f"/apis/pagetide.dev/v1alpha1/namespaces/{n}/{PLURAL}" for n in "ab"} | {
        f"/api/v1/namespaces/{n}/pods" for n in "ab"
    }
    assert all(query["labelSelector"] == LABEL_SERVICE for path, query in api.queries if path.endswith("pods"))


async def test_an_outage_of_the_api_server_changes_nothing(api, watch, until):
    api.put(PLURAL, service("m"))
    api.put("pods", pod("p", "m"))
    registry = await watch()
    api.broken = 503
    for plural in api.queues:
        api.tell(plural, None)  # the watches end
    await until(lambda: all(api.refused[plural] >= 2 for plural in api.queues))
    assert set(registry.find("m").replicas) == {"p"}
    api.objects["pods"] = {"ns/q": pod("q", "m", ip="10.0.0.2")}
    api.broken = 0
    await until(lambda: set(registry.find("m").replicas) == {"q"})


async def test_a_watch_that_says_nothing_more_is_found_out(api, watch, until, monkeypatch):
    monkeypatch.setattr(kube_api, "WATCH_S", 1)
    registry = await watch()
    api.mute = True
    api.put(PLURAL, service("m"))
    await until(lambda: registry.find("m") is not None, 5)


async def test_a_watch_that_never_ends_is_given_up(api, watch, until, monkeypatch):
    monkeypatch.setattr(kube_api, "_MARGIN_S", -59.5)
    registry = await watch()
    api.mute = True
    api.put(PLURAL, service("m"))
    await until(lambda: registry.find("m") is not None, 5)


async def test_a_watch_that_is_too_far_behind_begins_anew(api, watch, until):
    registry = await watch()
    before = api.lists[PLURAL]
    api.objects[PLURAL]["ns/m"] = service("m")
    api.tell(PLURAL, {"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    await until(lambda: registry.find("m") is not None)
    assert api.lists[PLURAL] > before


async def test_bookmarks_and_large_objects_pass(api, watch, until):
    registry = await watch()
    api.tell(PLURAL, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    large = service("m")
    large["metadata"]["annotations"] = {"x": "y" * 1_500_000}
    api.put(PLURAL, large)
    await until(lambda: registry.find("m") is not None)


async def test_a_service_that_scales_can_be_woken_and_one_that_does_not_cannot(api, watch):
    api.put(PLURAL, service("scaled", autoscaling={"minReplicas": 0}))
    api.put(PLURAL, service("fixed", replicas=0))
    registry = await watch()
    assert registry.find("fixed").wake is None
    await registry.find("scaled").wake()
    ((path, body),) = api.patches
    assert path == f"/apis/pagetide.dev/v1alpha1/namespaces/ns/{PLURAL}/scaled"
    (time,) = [body["metadata"]["annotations"].pop(ANNOTATION_WAKE)]
    assert time.endswith("Z")
    assert body == {"metadata": {"annotations": {}}}


async def test_who_asks_for_a_name_that_two_have_is_told_of_both(start_replicas, start_gateway, until):
    (a,), (b,) = await start_replicas(1, "m"), await start_replicas(1, "m")
    front = await start_gateway()
    front.registry.put("x/m", {"m-0": a.url}, served="m")
    front.registry.put("y/m", {"m-0": b.url}, served="m")
    async with front.post({"model": "m"}) as response:
        assert response.status == 404
        message = (await response.json())["error"]["message"]
    assert "x/m" in message
    assert "y/m" in message
    async with front.get("/v1/models") as response:
        assert [m["id"] for m in (await response.json())["data"]] == ["x/m", "y/m"]
    await until(lambda: all(r.health.ready for _, r in front.registry.replicas()))
    async with front.post({"model": "y/m", "prompt": "x"}) as response:
        assert response.status == 200
    assert [json.loads(body) for body in b.bodies] == [{"model": "m", "prompt": "x"}]
    assert not a.bodies
    async with front.get("/v1/models/y/m") as response:
        assert (await response.json())["id"] == "y/m"


async def test_a_gateway_is_not_ready_before_it_has_seen_the_cluster(start_gateway):
    seen = False
    front = await start_gateway(is_synced=lambda: seen)
    async with front.get("/readyz") as response:
        assert response.status == 503
    seen = True
    async with front.get("/readyz") as response:
        assert response.status == 200
