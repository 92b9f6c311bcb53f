"""A real gateway on a loopback socket, in front of small fake replicas whose every move a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.routing.routers import RoundRobin, Router
from pagetide_gateway.serving.app import Gateway
from pagetide_gateway.serving.server import GatewayServer
from pagetide_spec.web import listen

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answer_json(request: web.Request) -> web.StreamResponse:
    """What a replica answers unless the test says otherwise."""
    return web.json_response({"choices": [{"text": "fine"}]})


async def no_metrics() -> str:
    """What a replica's `/metrics` says unless the test says otherwise."""
    return ""


class FakeReplica:
    """One upstream server. `answer` handles POST; `ready` is the status of `/readyz`."""

    def __init__(self, name: str, model: str) -> None:
        self.name, self.model = name, model
        self.answer: Answer = answer_json
        self.ready = 200
        self.may_speak = asyncio.Event()
        self.may_speak.set()
        self.models: list[str] = [model]
        self.on_models: Callable[[web.Request], object] = lambda request: None
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.cancelled = asyncio.Event()
        self.url = ""
        self.metrics: Callable[[], Awaitable[str]] = no_metrics

    async def start(self) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/{path:.*}", self._post)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", int(self.url.rpartition(":")[2] or 0))
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        await self.may_speak.wait()
        return web.json_response({"status": "loading"}, status=self.ready)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.on_models(request)
        return web.json_response({"data": [{"id": m, "object": "model", "max_model_len": 77} for m in self.models]})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=await self.metrics())

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        try:
            return await self.answer(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclasses.dataclass
class Front:
    """A gateway that runs, and a client for it."""

    url: str
    port: int
    registry: Registry
    server: GatewayServer
    client: aiohttp.ClientSession
    serving: asyncio.Task[None]

    def post(self, body: Any, path: str = "/v1/completions", **options: Any) -> Any:
        return self.client.post(self.url + path, json=body, **options)

    def get(self, path: str) -> Any:
        return self.client.get(self.url + path)

    async def metric(self, line_start: str) -> float:
        """Value of the first sample whose line starts so; 0 where there is none."""
        async with self.get("/metrics") as response:
            for line in (await response.text()).splitlines():
                if line.startswith(line_start):
                    return float(line.rpartition(" ")[2])
        return 0.0


async def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return as soon as the condition holds; fail when it does not within the time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition, not one event
            await asyncio.sleep(0.01)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    return wait_until


@pytest.fixture
async def start_replicas() -> AsyncIterator[Callable[..., Awaitable[list[FakeReplica]]]]:
    """`await start_replicas(2, model="m")` -> running fake replicas."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(count: int, model: str = "m") -> list[FakeReplica]:
            replicas = [FakeReplica(f"{model}-{i}", model) for i in range(count)]
            for replica in replicas:
                await replica.start()
                stack.push_async_callback(replica.stop)
            return replicas

        yield start


@pytest.fixture
async def start_gateway() -> AsyncIterator[Callable[..., Awaitable[Front]]]:
    """`await start_gateway(*replicas)` -> a gateway in front of them; waits until it sees those ready that are."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *replicas: FakeReplica, drain_s: float = 5, make_router: Callable[[], Router] = RoundRobin, **options: Any
        ) -> Front:
            registry = Registry(make_router)
            for model in {r.model for r in replicas}:
                registry.put(model, {r.name: r.url for r in replicas if r.model == model})
            listener = listen("127.0.0.1", 0)
            server = GatewayServer(Gateway(registry, **options), drain_s=drain_s)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            stack.push_async_callback(_end, server, task)
            port = listener.getsockname()[1]
            client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            healthy = sum(r.ready == 200 and r.model in r.models for r in replicas)
            await wait_until(lambda: sum(r.health.ready for _, r in registry.replicas()) == healthy)
            await wait_until(lambda: server.started)
            return Front(f"http://127.0.0.1:{port}", port, registry, server, client, task)

        yield start


async def _end(server: GatewayServer, task: asyncio.Task[None]) -> None:
    server.stop()
    await asyncio.wait_for(task, 10)
