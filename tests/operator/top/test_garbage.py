"""`pagetide top` before those who answer, but with what makes no sense: one line, never a traceback."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web
from rich.console import Console

from pagetide_operator.top.exposition import look
from pagetide_operator.top.screen import Screen
from pagetide_operator.top.sources import NoAnswer, Web, source_at
from pagetide_spec.metrics import GATEWAY_METRICS

GATEWAY = f"{GATEWAY_METRICS['gateway_requests_in_flight'].full_name} 1\n"
SERVER = 'pagetide_requests_running{model_name="m"} 1\n'


def summary(**replica):
    """What a gateway says of one replica."""
    known = {"name": "r", "state": "ready", "reason": "", "inFlight": 0}
    service = {"key": "s", "model": "m", "held": 0, "replicas": [known | replica]}
    return json.dumps({"time": 1.0, "services": [service]})


async def frame_of(metrics, told=""):
    """The first frame that `top` makes of these answers."""
    app = web.Application()
    app.router.add_get("/metrics", lambda _: web.Response(text=metrics))
    app.router.add_get("/summary", lambda _: web.Response(text=told))
    app.router.add_get("/readyz", lambda _: web.Response(text="ready"))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    session = aiohttp.ClientSession()
    try:
        source = await source_at(Web(f"http://127.0.0.1:{runner.addresses[0][1]}", session))
        return await source.frame()
    finally:
        await session.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param("null", id="nothing"),
        pytest.param("[" * 100_000, id="lists without an end"),
        pytest.param(summary(running="x"), id="a word as a number"),
        pytest.param(summary(kvUsedRatio="0.5"), id="a number in quotes"),
        pytest.param(summary(waiting={}), id="an object as a number"),
        pytest.param(summary(running=10**400, maxRunning=3), id="a number without bounds"),
        pytest.param(summary(state=None), id="no state"),
    ],
)
async def test_a_summary_that_is_none_is_one_line(told):
    with pytest.raises(NoAnswer, match="not understood") as error:
        await frame_of(GATEWAY, told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        pytest.param(GATEWAY, summary(name="\x1b[31mr\n\x07", reason="\x1b]0;t\x07", state="no"), id="a gateway"),
        pytest.param(
            f'{SERVER}pagetide_requests_total{{finish_reason="\x1b[2Jstop",model_name="m"}} 1\n', "", id="a server"
        ),
    ],
)
async def test_what_others_say_does_not_steer_the_terminal(metrics, told, capsys):
    frame = await frame_of(metrics, told)
    Console(width=200).print(Screen(frame))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_bucket_without_a_bound_is_no_metric():
    with pytest.raises(ValueError, match="no label le"):
        look(f'{SERVER}pagetide_request_queue_seconds_bucket{{model_name="m"}} 3\n', 0.0)


async def test_an_answer_without_an_end_is_one_line():
    with pytest.raises(NoAnswer, match="more than 32 MiB"):
        await frame_of("#" * ((32 << 20) + 1))


async def test_what_is_no_number_is_not_told():
    frame = await frame_of(
        'pagetide_requests_running{model_name="m"} NaN\npagetide_requests_waiting{model_name="m"} NaN\n'
        'pagetide_kv_cache_utilization_ratio{model_name="m"} +Inf\n'
        'pagetide_generation_tokens_total{model_name="m"} NaN\n'
    )
    (row,) = frame.rows
    assert (row.running, row.waiting, row.kv) == (None, 0.0, None)
    assert frame.detail.after.total("generation_tokens_total") == 0.0
