"""What servers can hold: read from their metrics, in the background, once for each pod."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from pagetide_operator.autoscaling import scrape
from pagetide_operator.verdicts.capacity import Capacity, Meter, metrics_of, parsed, total

TEXT = """\
# TYPE pagetide_kv_capacity_tokens gauge
pagetide_kv_capacity_tokens{model_name="m"} 4096.0
# TYPE pagetide_max_num_seqs gauge
pagetide_max_num_seqs{model_name="m"} 8.0
"""


def pod(uid, ready=True):
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": {"uid": uid}, "status": {"podIP": uid, "conditions": conditions}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(TEXT, Capacity(4096, 8), id="both are told"),
        pytest.param('pagetide_max_num_seqs{model_name="m"} 8.0\n', None, id="one is missing"),
        pytest.param("", None, id="nothing is told"),
        pytest.param(TEXT.replace("8.0", "+Inf"), None, id="what is no number of sequences"),
    ],
)
def test_parsed(text, expected):
    assert parsed(text) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("a"), pod("b")], Capacity(3, 30), id="ready pods add up"),
        pytest.param([pod("a"), pod("b", ready=False)], Capacity(1, 10), id="others do not count"),
        pytest.param([pod("a"), pod("c")], None, id="one is not known yet"),
        pytest.param([], Capacity(0, 0), id="no pods"),
    ],
)
def test_total(pods, expected):
    assert total(pods, {"a": Capacity(1, 10), "b": Capacity(2, 20)}) == expected


async def test_an_ipv6_address_is_asked_as_such():
    asked = asyncio.Queue()

    async def fetch(address):
        asked.put_nowait(address)
        return TEXT

    meter = Meter(fetch, lambda name: None)
    running = asyncio.create_task(meter.run())
    meter.ask(("ns", "llm"), [pod("fd00::1")])
    assert await asyncio.wait_for(asked.get(), 5) == "http://[fd00::1]:8000"
    running.cancel()


async def test_each_pod_is_asked_once_and_a_silent_one_harms_nobody():
    asked, found = [], asyncio.Queue()

    async def fetch(address):
        asked.append(address)
        if "silent" in address:
            raise TimeoutError
        return TEXT

    meter = Meter(fetch, found.put_nowait)
    running = asyncio.create_task(meter.run())
    for _ in range(3):
        meter.ask(("ns", "llm"), [pod("silent"), pod(""), pod("a"), pod("b", ready=False)])
        await asyncio.sleep(0)
    assert await asyncio.wait_for(found.get(), 5) == ("ns", "llm")
    meter.ask(("ns", "llm"), [pod("a")])
    running.cancel()
    assert sorted(asked) == ["http://a:8000", "http://silent:8000"]
    assert meter.known == {"a": Capacity(4096, 8)}
    meter.forget_all_but(set())
    assert meter.known == {}


async def test_nothing_that_a_pod_says_ends_the_operator():
    found = asyncio.Queue()

    async def fetch(address):
        if "odd" in address:
            raise LookupError("unknown encoding: klingon")
        return TEXT.replace("8.0", "+Inf") if "endless" in address else TEXT

    meter = Meter(fetch, found.put_nowait)
    running = asyncio.create_task(meter.run())
    meter.ask(("ns", "llm"), [pod("odd"), pod("endless"), pod("a")])
    assert await asyncio.wait_for(found.get(), 5) == ("ns", "llm")
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    assert meter.known == {"a": Capacity(4096, 8)}


@contextlib.asynccontextmanager
async def serving(**handlers):
    """A server with a handler for each path; its address."""
    app = web.Application()
    for path, handler in handlers.items():
        app.router.add_get(f"/{path}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    await runner.cleanup()


async def test_a_body_without_an_end_is_not_read_to_the_end(monkeypatch):
    monkeypatch.setattr(scrape, "MOST_ANSWER_BYTES", 64)

    async def endless(request):
        reply = web.StreamResponse()
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await reply.write(b"x" * 1024)
        return reply

    async with serving(metrics=endless) as address:
        with pytest.raises(ValueError, match="an answer of more than"):
            await metrics_of(address)


async def test_a_pod_cannot_send_us_elsewhere():
    asked = []

    async def elsewhere(request):
        asked.append(request.path)
        return web.Response(text=TEXT)

    async def metrics(request):
        raise web.HTTPFound("/internal")

    async with serving(metrics=metrics, internal=elsewhere) as address:
        assert parsed(await metrics_of(address)) is None
    assert asked == []
