"""The page at `/` in a real headless browser: what people see, on wide and narrow screens, light and dark, with keys
and without, and what names and answers that are no text of ours may do to it.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.serving.page import _HTML, Page

from .browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='needs a headless browser: name it in CHROMIUM, or: eval "$(.ci/observers)"'
)
STATE = "document.getElementById('state').textContent"
ANSWER = "document.getElementById('answer').textContent"
SEND = "document.getElementById('send').click()"


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


@pytest.mark.usefixtures("quick_points")
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
    await browser.read(SEND)
    await browser.until(f"{ANSWER}.endsWith(' was')")
    assert await browser.read(ANSWER) == "<img src=x onerror=alert(1)> there was"
    assert json.loads(replicas[0].bodies[0] if replicas[0].bodies else replicas[1].bodies[0])["model"] == "m"
    assert browser.complaints == []
    assert all(url.startswith((front.url, "data:")) for url in browser.asked_for), browser.asked_for
    assert len(browser.asked_for) > 2
    assert len(await browser.picture()) > 5000

    for replica in replicas:
        replica.answer = refuse
    await browser.read(SEND)
    await browser.until(f"{ANSWER} == 'the prompt is too long'")


async def test_the_page_asks_for_a_key_where_one_is_needed(start_replicas, start_gateway, browser):
    replica, *_ = replicas = await start_replicas(1)
    replica.answer = stream
    front = await start_gateway(*replicas, access=Access(KeyRing([make_key("me", "right")])))
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == 'an API key is needed'")
    assert await browser.read("document.getElementById('key-label').hidden") is False
    await type_key(browser, "right")
    await browser.until(f"{STATE} == '1 of 1 services ready'")
    await browser.read(SEND)
    await browser.until(f"{ANSWER}.endsWith(' was')")
    # Whoever loses the key sees nothing more.
    await type_key(browser, "wrong")
    await browser.until(f"{STATE} == 'the API key is not valid'")
    assert await browser.read("document.getElementById('services').textContent") == ""
    await browser.read(SEND)
    await browser.until(f"{ANSWER} == 'The API key is not valid'")


async def type_key(browser: Browser, key: str) -> None:
    await browser.read(f"document.getElementById('key').value = '{key}'; refresh()")


@pytest.mark.parametrize(
    ("wake", "broken", "said"),
    [pytest.param(False, "", "no replica", id="nobody wakes it"),
     pytest.param(True, "", "no replica; a request wakes it", id="it sleeps"),
     pytest.param(True, "InvalidSpec: told", "no replica can start: InvalidSpec: told", id="it is wrong")],
)  # fmt: skip
async def test_a_service_without_replicas(start_gateway, browser, wake, broken, said):
    async def woken() -> None: ...

    front = await start_gateway()
    front.registry.put("empty", {}, wake=woken if wake else None, broken=broken)
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == '0 of 1 services ready'")
    assert await browser.read("document.querySelector('#services p').textContent") == said


EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


async def test_names_and_reasons_from_elsewhere_are_text(start_replicas, start_gateway, browser):
    replicas = await start_replicas(1, model=EVIL)
    front = await start_gateway(*replicas)
    service = front.registry.services[EVIL]
    replica = service.replicas[f"{EVIL}-0"]
    replica.figures = None
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == '1 of 1 services ready'")
    assert await browser.read("document.querySelector('h2').textContent") == EVIL
    assert await browser.read("document.querySelector('#services td').textContent") == f"{EVIL}-0"
    assert await browser.read("document.querySelectorAll('img, #services script').length") == 0
    assert await browser.read("document.getElementById('model').value") == EVIL
    assert browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
async def test_it_fits_and_can_be_read(start_replicas, start_gateway, browser, width, scheme):
    replicas = await start_replicas(2, model="a-service-with-a-name-that-is-as-long-as-names-of-pods-are-7d9f8c6b5")
    front = await start_gateway(*replicas)
    await browser.look(width, scheme)
    await browser.open(front.url + "/")
    await browser.until("document.querySelectorAll('#services tr').length == 3")
    assert await browser.read("document.documentElement.scrollWidth <= innerWidth")
    for element in ("h2", "td", "td.ready", "th", "#state", "label", "figcaption"):
        assert await browser.read(CONTRAST % (element, scheme)) >= 4.5, element
    assert len(await browser.picture()) > 5000


# How well an element's text stands out, as WCAG counts it, before the canvas of the scheme.
CONTRAST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const text = light(getComputedStyle(document.querySelector('%s')).color);
  const ground = light('%s' === 'dark' ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)');
  return (Math.max(text, ground) + .05) / (Math.min(text, ground) + .05);
})()"""


async def endless(request: web.Request) -> web.StreamResponse:
    """Goes on until nobody listens."""
    out = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await out.prepare(request)
    while True:
        await out.write(b'data: {"choices": [{"index": 0, "text": "on "}]}\n\n')
        await asyncio.sleep(0.01)


async def test_an_answer_can_be_stopped(start_replicas, start_gateway, browser, until):
    replica, *_ = replicas = await start_replicas(1)
    replica.answer = endless
    front = await start_gateway(*replicas)
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == '1 of 1 services ready'")
    await browser.read(SEND)
    await browser.until(f"{ANSWER}.startsWith('on on on')")
    assert await browser.read("document.getElementById('send').disabled") is True
    await browser.read("document.getElementById('stop').click()")
    await browser.until("!document.getElementById('send').disabled")
    await until(replica.cancelled.is_set)
    assert (await browser.read(ANSWER)).strip("on ") == ""
    assert await browser.read("document.getElementById('stop').hidden") is True


async def refuse_in_html(request: web.Request) -> web.StreamResponse:
    """As one between us and the gateway would."""
    return web.Response(status=413, text="<html><h1>too large</h1></html>", content_type="text/html")


async def test_a_refusal_that_is_no_json_is_told_by_its_status(start_replicas, start_gateway, browser):
    replica, *_ = replicas = await start_replicas(1)
    replica.answer = refuse_in_html
    front = await start_gateway(*replicas)
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == '1 of 1 services ready'")
    await browser.read(SEND)
    assert await browser.until(ANSWER) == "the gateway answers 413"


async def test_a_key_that_no_header_can_carry_is_not_valid(start_replicas, start_gateway, browser):
    front = await start_gateway(*await start_replicas(1), access=Access(KeyRing([make_key("me", "right")])))
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == 'an API key is needed'")
    await type_key(browser, "клю́ч")
    await browser.until(f"{STATE} == 'the API key is not valid'")


IMPATIENT = _HTML.replace("PATIENCE_MS = 5000", "PATIENCE_MS = 300")


async def test_a_gateway_that_hangs_is_told_from_one_at_work(browser):
    """It takes the question and says nothing, as a stopped process does."""
    assert IMPATIENT != _HTML
    page, hangs, told = Page(Registry(), None), asyncio.Event(), asyncio.Event()

    async def show(request: web.Request) -> web.Response:
        return web.Response(text=IMPATIENT, content_type="text/html")

    async def tell(request: web.Request) -> web.Response:
        if hangs.is_set():
            await told.wait()
        return web.json_response(page.summary())

    app = web.Application()
    app.add_routes([web.get("/", show), web.get("/summary", tell)])
    async with TestServer(app) as server:
        await browser.open(str(server.make_url("/")))
        await browser.until(f"{STATE} == '0 of 0 services ready'")
        hangs.set()
        try:
            await browser.until(f"{STATE} == 'the gateway does not answer'")
        finally:  # the server ends only once all is answered
            hangs.clear()
            told.set()
        await browser.until(f"{STATE} == '0 of 0 services ready'")


async def test_a_chart_says_nothing_of_now_where_nobody_tells(start_replicas, start_gateway, browser):
    front = await start_gateway(*await start_replicas(1))
    await browser.open(front.url + "/")
    await browser.until(f"{STATE} == '1 of 1 services ready'")
    captions = "[5, null].map((last) => chart('tokens/s', [7, last], number).querySelector('b').textContent).join()"
    assert await browser.read(captions) == "5,–"
