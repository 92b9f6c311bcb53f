"""The page at `/`: its data, and itself in a real headless browser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.replicas.registry import Health, Registry
from pagetide_gateway.routing.replica_load import Figures
from pagetide_gateway.serving.page import Page, point_of

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason='needs a headless browser: name it in CHROMIUM, or: eval "$(.ci/observers)"'
)


# ---- figures


@pytest.fixture
def registry():
    made = Registry()
    service = made.put("m", {"m-0": "http://127.0.0.1:1", "m-1": "http://127.0.0.1:2"})
    for replica in service.replicas.values():
        replica.health = Health(ready=True)
    return made


def tell(registry, name, **figures):
    registry.services["m"].replicas[name].figures = Figures(**figures)


def test_points_are_rates_over_all_replicas(registry):
    now = [1000.0]
    page = Page(registry, None, clock=lambda: now[0])
    tell(registry, "m-0", generated_tokens=100.0, query_tokens=50.0, hit_tokens=0.0, running=1.0, waiting=0.0)
    page.look()
    now[0] += 10
    tell(registry, "m-0", generated_tokens=200.0, query_tokens=150.0, hit_tokens=75.0, running=2.0, waiting=3.0)
    tell(registry, "m-1", generated_tokens=5000.0, query_tokens=10.0, hit_tokens=10.0, running=1.0, waiting=0.0)
    page.look()
    point = page.summary()["services"][0]["history"][-1]
    # The second one was not known before: what it did until then is not of this interval.
    assert point == {"time": 1010.0, "inFlight": 0, "held": 0, "running": 3.0, "waiting": 3.0, "tokens": 10.0,
                     "hitRatio": 0.75}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "tokens"),
    [
        pytest.param({"m-0": (100.0, None, None)}, {"m-0": (130.0, None, None)}, 3.0, id="it went on"),
        pytest.param({"m-0": (100.0, None, None)}, {"m-0": (20.0, None, None)}, 2.0, id="it began anew"),
        pytest.param({"m-0": (None, None, None)}, {"m-0": (20.0, None, None)}, 0.0, id="it had told nothing"),
        pytest.param({"gone": (5.0, None, None)}, {}, 0.0, id="it is gone"),
    ],
)
def test_how_totals_grow(registry, before, now, tokens):
    tell(registry, "m-0")
    assert point_of(registry.services["m"], before, now, 10.0, 0.0).tokens == tokens


def test_who_tells_nothing_has_no_figures(registry):
    point = point_of(registry.services["m"], {}, {}, 5.0, 0.0)
    assert (point.running, point.tokens, point.hit_ratio) == (None, None, None)


def test_the_past_is_bounded_and_services_that_are_gone_are_forgotten(registry):
    page = Page(registry, None)
    for _ in range(100):
        page.look()
    assert len(page.summary()["services"][0]["history"]) == 60
    registry.remove("m")
    page.look()
    assert page.summary()["services"] == []


async def test_with_keys_the_data_needs_one_and_the_page_tells_nothing(start_replicas, start_gateway):
    front = await start_gateway(
        *await start_replicas(1, "secret-model"), access=Access(KeyRing([make_key("me", "right")]))
    )
    async with front.get("/summary") as reply:
        assert reply.status == 401
    async with front.client.get(front.url + "/summary", headers={"authorization": "Bearer right"}) as reply:
        assert (await reply.json())["services"][0]["model"] == "secret-model"
    async with front.get("/") as reply:
        assert reply.status == 200
        assert "secret-model" not in await reply.text()
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


# ---- in a browser


class Browser:
    """One page of a headless Chromium, driven over its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._count = socket, 0
        self.complaints: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=30)
            if message.get("id") == self._count:
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(str(event["params"]["entry"]))

    async def open(self, url: str) -> None:
        for domain in ("Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def read(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 20.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := await self.read(expression)):  # noqa: ASYNC110 - the page has no event for us
                await asyncio.sleep(0.05)
        return found

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@pytest.fixture
async def browser(tmp_path: Path, until: Any) -> AsyncIterator[Browser]:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1000,900")
    process = await asyncio.create_subprocess_exec(
        str(CHROMIUM), *flags, f"--user-data-dir={tmp_path}/profile", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        path = tmp_path / "profile/DevToolsActivePort"
        await until(lambda: port_in(path) or process.returncode is not None, 60)
        port = port_in(path)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                page = next(p for p in await reply.json(content_type=None) if p["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=1 << 25) as socket:
                yield Browser(socket)
    finally:
        # Debian's command is a script around the browser: killed alone, it would leave that behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def port_in(path: Path) -> str:
    """The port that the browser has written down; empty until it has."""
    return next(iter(path.read_text().split()), "") if path.exists() else ""


TOLD = """
pagetide_requests_running{{model_name="m"}} 3
pagetide_requests_waiting{{model_name="m"}} 1
pagetide_kv_cache_utilization_ratio{{model_name="m"}} 0.42
pagetide_generation_tokens_total{{model_name="m"}} {tokens}
"""


async def stream(request: web.Request) -> web.StreamResponse:
    """Three pieces; the first is what a careless page would run."""
    out = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await out.prepare(request)
    for piece in ("<img src=x onerror=alert(1)>", " there", " was"):
        await out.write(b"data: " + json.dumps({"choices": [{"index": 0, "text": piece}]}).encode() + b"\n\n")
    await out.write(b"data: [DONE]\n\n")
    return out


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "the prompt is too long"}}, status=400)


@needs_browser
async def test_the_page_shows_the_fleet_and_answers_a_prompt(start_replicas, start_gateway, browser):
    replicas = await start_replicas(2)
    tokens = [0]

    async def metrics() -> str:
        tokens[0] += 50
        return TOLD.format(tokens=tokens[0])

    for replica in replicas:
        replica.metrics, replica.answer = metrics, stream
    front = await start_gateway(*replicas)
    await browser.open(front.url + "/")
    await browser.until("document.querySelectorAll('#services tr').length == 3")
    assert await browser.until("document.getElementById('state').textContent == '1 of 1 services ready'")
    await browser.until("document.querySelector('#services table').textContent.includes('42 %')")
    assert "ready" in await browser.read("document.querySelector('#services td.ready').textContent")
    # After two points there is a line.
    await browser.until("document.querySelector('polyline').getAttribute('points').split(' ').length >= 2")
    await browser.read("document.getElementById('send').click()")
    answer = "document.getElementById('answer').textContent"
    await browser.until(f"{answer}.endsWith(' was')")
    assert await browser.read(answer) == "<img src=x onerror=alert(1)> there was"
    assert json.loads(replicas[0].bodies[0] if replicas[0].bodies else replicas[1].bodies[0])["model"] == "m"
    assert browser.complaints == []
    assert len(await browser.picture()) > 5000

    for replica in replicas:
        replica.answer = refuse
    await browser.read("document.getElementById('send').click()")
    await browser.until(f"{answer} == 'the prompt is too long'")


@needs_browser
async def test_the_page_asks_for_a_key_where_one_is_needed(start_replicas, start_gateway, browser):
    front = await start_gateway(*await start_replicas(1), access=Access(KeyRing([make_key("me", "right")])))
    await browser.open(front.url + "/")
    await browser.until("document.getElementById('state').textContent == 'an API key is needed'")
    await browser.read("document.getElementById('key').value = 'right'; refresh()")
    await browser.until("document.getElementById('state').textContent == '1 of 1 services ready'")
