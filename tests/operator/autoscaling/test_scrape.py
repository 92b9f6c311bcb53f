"""Many servers asked at once: a slow or dead one costs nobody else anything."""

import asyncio

from aiohttp import web

from pagetide_operator.autoscaling import scrape
from pagetide_operator.autoscaling.scrape import Scraper


async def test_slow_and_dead_pods_cost_the_others_nothing(monkeypatch, unused_tcp_port):
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.3)
    hang = asyncio.Event()

    async def metrics(request):
        kind = request.host.partition(":")[0]
        if kind == "localhost":
            await hang.wait()
        text = 'pagetide_max_num_seqs{model_name="m"} 4\npagetide_kv_capacity_tokens{model_name="m"} 64\n'
        if kind == "127.0.0.3":
            return web.Response(text=text + "#" * scrape.MOST_ANSWER_BYTES)
        return web.Response(text=text if kind == "127.0.0.1" else "hello")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    scraper = Scraper(lambda: 7.0)
    async with asyncio.timeout(2):
        found = await scraper.scrape({
            "good": f"http://127.0.0.1:{port}", "slow": f"http://localhost:{port}",
            "huge": f"http://127.0.0.3:{port}", "odd": f"http://127.0.0.2:{port}", "dead": f"http://127.0.0.1:{unused_tcp_port}",
        })  # fmt: skip
    await scraper.close()
    hang.set()
    await runner.cleanup()
    assert (found["good"].at, found["good"].max_seqs) == (7.0, 4)
    assert found["slow"] == "no answer within 0.3 s"
    assert "max_num_seqs" in found["odd"]
    assert isinstance(found["dead"], str)
    assert found["huge"] == "an answer of more than 4 MiB", "a part of it would pass for the whole"
