"""The client and the engine process without HTTP."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pagetide_server.process.client import EngineClient, EngineDead, EngineFailed, Prompt
from pagetide_server.process.liveness import Liveness
from pagetide_server.process.process_state import ProcessState, process_state
from pagetide_server.wire.messages import EngineStats, Heartbeat, SamplingParams, StepOutput, Structure
from pagetide_spec.config import EngineConfig

FAKES = Path(__file__).parents[1] / "api"
# Of fake_core.py.
SLOW, DIE = 380, 383
PARAMS = SamplingParams(max_tokens=5)


@pytest.fixture
async def engine(monkeypatch):
    """A started client; the engine process runs `fake_core`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    found = WatchedClient()
    await found.start(EngineConfig(model="fake", max_num_seqs=8), "fake_core:create")
    yield found
    await found.close()


class WatchedClient(EngineClient):
    """A client that keeps the engine's last word on its state."""

    def __init__(self):
        super().__init__(on_step=lambda step: setattr(self, "stats", step.stats))


async def generate(engine, prompt, params=PARAMS, name="r"):
    """Lists of outputs of one prompt until all its answers have ended; closing the iterator aborts the rest."""
    left = params.n
    with engine.open([Prompt(prompt, params)], name=name) as box:
        while left:
            outputs = await box.take()
            for output in outputs:
                if output.finish_reason is not None:
                    left = left - 1 if output.error_kind in (None, "engine") else 0
            if not left:
                engine.ended(box.ids[0])
            yield outputs


async def collect(engine, prompt, params=PARAMS, **more):
    return [o async for outputs in generate(engine, prompt, params, **more) for o in outputs]


async def until(condition, seconds=5):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another process
            await asyncio.sleep(0.01)


async def test_outputs_come_in_order_and_end(engine):
    outputs = await collect(engine, [300, 301])
    assert [len(o.token_ids) for o in outputs] == [1] * 5
    assert [o.finish_reason for o in outputs] == [None] * 4 + ["length"]
    assert outputs[0].scheduled > 0


async def test_equal_request_ids_do_not_collide(engine):
    one, two = await asyncio.gather(collect(engine, [300], name="same"), collect(engine, [301, 302], name="same"))
    alone = await collect(engine, [300])
    assert len({o.request_id for o in one + two}) == 2
    assert [o.token_ids for o in one] == [o.token_ids for o in alone] != [o.token_ids for o in two]


async def test_closing_the_iterator_aborts(engine):
    outputs = generate(engine, [SLOW], SamplingParams(max_tokens=400, n=2))
    await anext(outputs)
    assert engine.stats.running == 2
    await outputs.aclose()
    await until(lambda: engine.stats.running == 0)
    assert not engine._boxes


async def test_an_error_ends_the_iterator(engine):
    outputs = await collect(engine, [300], SamplingParams(n=3, structure=Structure(kind="grammar", value="wrong")))
    assert [(o.finish_reason, o.error_kind) for o in outputs] == [("error", "structure")]


async def test_death_reaches_every_open_iterator(engine):
    jobs = [collect(engine, [SLOW]), collect(engine, [DIE])]
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        assert isinstance(result, EngineDead)
        assert "signal 9" in str(result)
    assert "signal 9" in engine.why_unhealthy()
    assert engine.died.is_set()
    with pytest.raises(EngineDead):
        await collect(engine, [300])


async def test_an_idle_engine_is_healthy(engine):
    await until(lambda: engine._liveness.last is not None)
    assert engine.why_unhealthy() is None


async def test_a_core_that_does_not_exist_fails_the_start():
    client = EngineClient()
    with pytest.raises(EngineFailed, match="no_such_module"):
        await client.start(EngineConfig(model="fake"), "no_such_module:create")
    await client.close()


async def test_that_the_engine_starts_is_said_before_it_can_say_so_itself():
    said = []
    client = EngineClient(on_loading=lambda *stage: said.append(stage))
    with pytest.raises(EngineFailed):
        await client.start(EngineConfig(model="fake"), "no_such_module:create")
    await client.close()
    assert said == [("starting the engine", 0.0)]


async def test_a_start_that_spawns_nothing_leaves_nothing(tmp_path, monkeypatch):
    gc.collect()  # what earlier tests left must not be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    client = EngineClient()
    with pytest.raises(FileNotFoundError):
        await client.start(EngineConfig(model="fake"), "fake_core:create")
    assert len(os.listdir("/proc/self/fd")) > before
    await client.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_engine_process_ends_when_its_connection_does(engine):
    engine._link._socket.shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(10):
        await engine.died.wait()
    assert "exit code 4" in str(engine.failure)


async def test_an_answer_is_a_sign_of_life_too(engine):
    await until(lambda: engine._liveness.last is not None)
    engine._liveness.heard -= 30
    assert "no sign of life" in engine.why_unhealthy()
    engine._handle(StepOutput(outputs=[], stats=EngineStats(), time=0.0))
    assert engine.why_unhealthy() is None


async def test_last_words_that_cannot_be_handled_still_end_what_waits(engine, monkeypatch):
    def cannot(step):
        raise ValueError("cannot handle this")

    answers = asyncio.ensure_future(collect(engine, [DIE]))
    monkeypatch.setattr(engine._link, "receive_last", lambda: cannot(None))
    with pytest.raises(EngineDead):
        async with asyncio.timeout(10):
            await answers
    assert engine.died.is_set()
    assert engine.failure is not None


def beat(steps, has_work=True, started=None, time=0.0):
    return Heartbeat(time=time, steps=steps, step_started=started, has_work=has_work)


@pytest.mark.parametrize(
    ("beats", "now", "problem"),
    [
        pytest.param([], 1000, None, id="before the first heartbeat nothing is known"),
        pytest.param([(0, beat(0, has_work=False))], 5, None, id="a short silence"),
        pytest.param([(0, beat(0, has_work=False))], 7, "no sign of life", id="a long silence"),
        pytest.param([(0, beat(3, False)), (100, beat(3, False))], 101, None, id="idle for long"),
        pytest.param([(0, beat(3)), (30, beat(3, started=0, time=30))], 31, None, id="one long step"),
        pytest.param([(130, beat(3, started=0, time=130))], 131, "one engine step", id="a step that does not end"),
        pytest.param([(0, beat(3)), (25, beat(3))], 26, "no step", id="work, but no step"),
        pytest.param([(0, beat(3)), (25, beat(4))], 26, None, id="work and steps"),
        pytest.param([(0, beat(3, False)), (99, beat(3, False)), (100, beat(3))], 101, None, id="work after idleness"),
    ],
)
def test_health_is_decided_from_heartbeats(beats, now, problem):
    liveness = Liveness()
    for at, heartbeat in beats:
        liveness.beat(heartbeat, at)
    found = liveness.problem(now)
    assert (found is None) if problem is None else (problem in found)


@pytest.mark.parametrize(
    ("found", "silence", "is_lost"),
    [
        pytest.param(ProcessState(is_stopped=False, cpu_seconds=3.5), 20, False, id="it computes"),
        pytest.param(ProcessState(is_stopped=False, cpu_seconds=3.5), 61, True, id="it computes, but for too long"),
        pytest.param(ProcessState(is_stopped=False, cpu_seconds=3.0), 7, True, id="it does nothing"),
        pytest.param(ProcessState(is_stopped=True, cpu_seconds=3.5), 7, True, id="it is stopped"),
        pytest.param(None, 7, True, id="nobody knows"),
    ],
)
def test_a_silent_engine_that_computes_is_given_more_time(found, silence, is_lost):
    liveness = Liveness()
    liveness.beat(Heartbeat(time=0, steps=0, step_started=None, has_work=False, cpu_seconds=3.0), 0)
    assert (liveness.problem(silence, lambda: found) is not None) == is_lost


def test_a_process_tells_whether_it_is_stopped_and_what_it_has_computed():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while (found := process_state(process.pid)).cpu_seconds < 0.05:
            assert not found.is_stopped
        process.send_signal(signal.SIGSTOP)
        while not process_state(process.pid).is_stopped:
            pass
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) is None


@pytest.mark.parametrize(
    ("took", "is_stuck"),
    [pytest.param(599.0, False, id="ten times its estimate"), pytest.param(601.0, True, id="longer")],
)
def test_a_step_may_take_as_long_as_the_machine_is_slow(took, is_stuck):
    liveness = Liveness(step_seconds=60.0)
    liveness.beat(beat(1, started=0.0, time=took), took)
    assert (liveness.problem(took) is not None) == is_stuck
