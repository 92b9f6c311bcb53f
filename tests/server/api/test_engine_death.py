"""An engine that dies, hangs or outlives its server: what probes and clients see, and exit codes."""

from __future__ import annotations

import asyncio
import concurrent.futures as futures
import gc
import os
import signal
from pathlib import Path

import pytest

from pagetide_server.api.server import Server
from pagetide_server.api.sockets import listen
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig

from .asking import alive, stream

# Of fake_core.py.
SLOW, RAISE, DIE, LONG_STEP = 380, 382, 383, 384
PROBES = ("/livez", "/readyz", "/health")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(DIE, "killed by signal 9", id="the engine is killed"),
        pytest.param(RAISE, "a kernel failed", id="a step raises"),
    ],
)
def test_a_dead_engine_ends_streams_with_an_error_and_the_server_with_a_code(launch, fault, said):
    with launch() as server:
        engine = server.engine_pid
        with futures.ThreadPoolExecutor(2) as pool:
            whole = pool.submit(server.post, "/v1/completions", prompt=[SLOW], max_tokens=400)
            text = stream(server, prompt=[fault], max_tokens=400)
            assert whole.result(10).status_code == 503
        assert said in text
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"' not in text
        assert server.process.wait(10) == 4
        assert not alive(engine)
        assert said in server.log.read_text()


def test_a_stopped_engine_is_seen_within_ten_seconds(launch, wait):
    with launch() as server:
        assert server.status("/livez") == 200
        os.kill(server.engine_pid, signal.SIGSTOP)
        assert wait(lambda: server.status("/livez") == 503, 10) > 1
        assert server.status("/readyz") == 503
        answer = server.post("/v1/completions", prompt="x")
        assert answer.status_code == 503
        assert "no sign of life" in answer.json()["error"]["message"]
        os.kill(server.engine_pid, signal.SIGCONT)
        wait(lambda: server.status("/livez") == 200)
        assert server.complete(prompt="x", max_tokens=1)
    log = server.log.read_text()
    assert "GET /livez 503" in log
    assert "GET /livez 200" not in log


@pytest.mark.slow
def test_a_long_step_is_no_hang(launch):
    # It takes longer than a silence of heartbeats may.
    with launch() as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.post, "/v1/completions", prompt=[LONG_STEP], max_tokens=2)
        seen = set()
        while not job.done():
            seen |= {server.status(p) for p in PROBES}
        assert seen == {200}
        assert job.result().status_code == 200


def test_the_engine_dies_with_a_killed_server(launch, wait):
    with launch() as server:
        engine = server.engine_pid
        server.process.kill()
        wait(lambda: not alive(engine), 5)


async def test_a_server_whose_http_side_ends_does_not_live_on(tiny_model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    config = EngineConfig(model=str(tiny_model))
    server = Server(config, [], "fake_core:create", lambda config: Tokenizer.from_folder(Path(config.model)))

    async def serve(http, sockets):
        while server._context.prompter is None:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)

    monkeypatch.setattr("pagetide_server.api.server._Uvicorn.serve", serve)
    async with asyncio.timeout(20):
        with listen("127.0.0.1", 0) as listener:
            assert await server.run(listener) == 1
        gc.unfreeze()  # what it froze for the rest of its process, which is this one
