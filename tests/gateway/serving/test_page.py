"""The data of the page at `/`."""

from __future__ import annotations

import pytest

from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.replicas.registry import Health, Registry
from pagetide_gateway.routing.replica_load import Figures
from pagetide_gateway.serving.page import Page, point_of


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
    registry.put("m", {})
    assert page.summary()["services"][0]["history"] == []


def test_a_service_that_comes_back_owes_nothing_to_its_former_self(registry):
    page = Page(registry, None)
    tell(registry, "m-0", generated_tokens=100.0)
    page.look()
    registry.remove("m")
    page.look()
    registry.put("m", {"m-0": "http://127.0.0.1:1"}).replicas["m-0"].health = Health(ready=True)
    tell(registry, "m-0", generated_tokens=5000.0)
    page.look()
    assert page.summary()["services"][0]["history"][-1]["tokens"] == 0.0


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
