"""The `LLM` class: failures, interrupts, threads and its end."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import time

import pytest
import torch

from pagetide_server import LLM
from pagetide_server.engine.core import EngineCore
from pagetide_server.engine.scheduler import Scheduler
from pagetide_server.engine.tables import BlockTables
from pagetide_server.results import GenerationError
from pagetide_server.wire.messages import AbortRequest, AddRequest
from pagetide_spec.errors import PagetideError

from .calls import GREEDY, SETTINGS, greedy


def test_an_exception_in_the_middle_leaves_the_engine_usable(llm, monkeypatch):
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    runner, steps = llm._core._runner, []

    def interrupted(step):
        steps.append(step)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return type(runner).execute(runner, step)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5] * 30, [6] * 50], GREEDY)
    assert llm.stats.running == 0
    assert llm.generate([5, 6, 7], GREEDY)[0].outputs == expected


def answer_in_a_fork(llm, queue):
    signal.alarm(60)  # it would hang
    try:
        queue.put(llm.generate([5, 6, 7], GREEDY)[0].outputs[0].token_ids)
    except PagetideError as error:
        queue.put(str(error))


@pytest.mark.parametrize(("threads", "works"), [(1, True), (2, False)], ids=["one thread", "threads that are lost"])
def test_a_fork_answers_or_says_why_it_cannot(llm, threads, works):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = llm.generate([5, 6, 7], GREEDY)[0].outputs[0].token_ids
        fork = multiprocessing.get_context("fork")
        queue = fork.SimpleQueue()
        child = fork.Process(target=answer_in_a_fork, args=(llm, queue))
        child.start()
        child.join(90)
    finally:
        torch.set_num_threads(before)
    assert child.exitcode == 0
    assert queue.get() == expected if works else "start processes by the method `spawn`" in queue.get()


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        pytest.param(EngineCore, "add", id="while requests are taken in"),
        pytest.param(BlockTables, "_log", id="while blocks are handed out"),
        pytest.param(Scheduler, "settle", id="while tokens are taken down"),
    ],
)
def test_ctrl_c_waits_for_the_end_of_a_step(llm, monkeypatch, interruptible, owner, method):
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    plain, ended = getattr(owner, method), []

    def interrupted(*args, **kwargs):
        if not ended:
            os.kill(os.getpid(), signal.SIGINT)
        result = plain(*args, **kwargs)
        ended.append(method)
        return result

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5] * 30, [6] * 50], greedy(max_tokens=400))
    assert ended
    assert signal.getsignal(signal.SIGINT) is handler
    assert (llm.stats.blocks_used, llm._core._open) == (0, {})
    assert llm.generate([5, 6, 7], GREEDY)[0].outputs == expected


def test_a_second_ctrl_c_breaks_a_step_that_hangs(tiny_model, monkeypatch, interruptible):
    def hangs(step):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    llm = LLM(str(tiny_model("llama")), **SETTINGS)
    monkeypatch.setattr(llm._core._runner, "execute", hangs)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([5, 6, 7], GREEDY)
    with pytest.raises(PagetideError, match="this LLM is closed"):
        llm.generate([5, 6, 7], GREEDY)


def test_an_exception_while_blocks_are_told_of_loses_none(llm, monkeypatch):
    def broken(tables, event, sequence, blocks):
        if blocks:
            raise KeyboardInterrupt

    llm._core.add(AddRequest(request_id="a", prompt_token_ids=[5, 6, 7], params=GREEDY, arrival=0.0))
    with monkeypatch.context() as patch:
        patch.setattr(BlockTables, "_log", broken)
        with pytest.raises(KeyboardInterrupt):
            llm._core.step()
    assert llm.stats.blocks_used == 1
    llm._core.abort(AbortRequest("a"))
    assert (llm.stats.blocks_used, llm._core._open) == (0, {})


def test_callers_in_several_threads_wait_for_each_other(llm):
    prompts = [[5 + i, 6, 7] for i in range(6)]
    expected = [llm.generate(p, GREEDY)[0].outputs for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda p: llm.generate(p, GREEDY)[0].outputs, prompts))
    assert found == expected


def test_a_thread_of_the_callers_may_generate(llm):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(llm.generate, [5, 6, 7], GREEDY).result()
    assert found[0].outputs == llm.generate([5, 6, 7], GREEDY)[0].outputs


def test_a_failing_forward_is_told_and_leaves_the_engine_usable(llm, monkeypatch):
    def broken(step):
        raise RuntimeError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._runner, "execute", broken)
        with pytest.raises(GenerationError, match=r"llm-\d+: no memory left"):
            llm.generate([[5], [6]], GREEDY)
    assert len(llm.generate([[5], [6]], GREEDY)) == 2


def test_a_context_manager_closes_and_a_closed_one_says_so(tiny_model):
    with LLM(str(tiny_model("llama")), **SETTINGS) as llm:
        assert llm.vocab_size == 384
    llm.close()
    for use in (lambda: llm.generate([5]), lambda: llm.vocab_size, lambda: llm.stats):
        with pytest.raises(PagetideError, match="this LLM is closed"):
            use()
