"""What becomes of the prompts of one request, whatever the engine says of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_client import Engine

from pagetide_server.api.errors import ApiError
from pagetide_server.api.generation import generating
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.process.mailbox import Prompt
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.faults import EngineDead
from pagetide_server.wire.messages import SamplingParams, SequenceOutput


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def metrics():
    return ServerMetrics("m", "1")


@pytest.fixture
def start(engine, metrics, tiny_model: Path):
    tokenizer = Tokenizer.from_folder(tiny_model)

    def begin(prompts=1, **params):
        asked = [Prompt([300 + i], SamplingParams(**params)) for i in range(prompts)]
        return generating(engine, tokenizer, metrics, asked, "", arrival=0.0)

    return begin


def refusal(request_id):
    return SequenceOutput(request_id=request_id, finish_reason="error", error="full", error_kind="queue_full")


def counted(metrics):
    return {reason: count for (reason,), count in metrics._values["requests_total"].items() if count}


async def test_of_a_batch_only_what_was_taken_in_counts(start, engine, metrics):
    async def run():
        with start(prompts=4) as generation:
            engine.box.put(SequenceOutput(request_id="r-0", token_ids=[300], scheduled=1.0))
            engine.box.put(refusal("r-2"))
            engine.box.put(refusal("r-3"))
            await generation.finish()

    with pytest.raises(ApiError) as caught:
        await run()
    assert caught.value.status == 429
    # The first one ran, the second one waited; the others were never there.
    assert counted(metrics) == {"abort": 2}
    assert engine.ended_ids == ["r-2", "r-3"]


async def test_a_failure_behind_a_stop_string_harms_nothing(start, engine, metrics):
    with start(n=2, stop=("e",)) as generation:
        text = generation.runs[0].answers[0]._detokenizer._tokenizer.encode("e", add_special_tokens=False)
        engine.box.put(SequenceOutput(request_id="r-0", index=0, token_ids=text, scheduled=1.0))
        (delta,) = await generation.next()
        assert (delta.finish_reason, engine.stopped) == ("stop", [("r-0", 0)])
        error = {"finish_reason": "error", "error": "late", "error_kind": "engine"}
        engine.box.put(SequenceOutput(request_id="r-0", index=0, **error))
        engine.box.put(SequenceOutput(request_id="r-0", index=1, token_ids=[300], finish_reason="length"))
        assert [d.index for d in await generation.next()] == [1]
        assert await generation.next() == []
    assert counted(metrics) == {"stop": 1}


async def test_tokens_before_a_failure_are_given_out(start, engine, metrics):
    """As when a client reads slowly and its outputs have piled up."""
    with start() as generation:
        error = {"finish_reason": "error", "error": "out of luck", "error_kind": "engine"}
        engine.box.put(plain(300, scheduled=1.0))
        engine.box.put(plain(301))
        engine.box.put(SequenceOutput(request_id="r-0", **error))
        assert [d.token_ids for d in await generation.next()] == [[300], [301]]
        with pytest.raises(ApiError, match="the engine failed"):
            await generation.next()
    assert counted(metrics) == {"error": 1}
    assert metrics._values["generation_tokens_total"] == {(): 2}


async def test_a_failure_behind_a_stop_string_of_the_same_batch_harms_nothing(start, engine, metrics):
    with start(stop=("e",)) as generation:
        text = generation.runs[0].answers[0]._detokenizer._tokenizer.encode("e", add_special_tokens=False)
        engine.box.put(SequenceOutput(request_id="r-0", token_ids=text, scheduled=1.0))
        engine.box.put(SequenceOutput(request_id="r-0", finish_reason="error", error="late", error_kind="engine"))
        assert [d.finish_reason for d in await generation.next()] == ["stop"]
        assert await generation.next() == []
    assert counted(metrics) == {"stop": 1}


async def test_a_dead_engine_is_an_error_of_every_open_prompt(start, engine, metrics):
    async def run():
        with start(prompts=2) as generation:
            engine.box.put(SequenceOutput(request_id="r-0", token_ids=[300], finish_reason="length", scheduled=1.0))
            await generation.next()
            engine.box.fail(EngineDead("gone"))
            await generation.next()

    with pytest.raises(EngineDead):
        await run()
    assert counted(metrics) == {"length": 1, "error": 1}


async def test_an_answer_that_cannot_be_written_counts_as_an_error(start, engine, metrics):
    with pytest.raises(ValueError, match="no JSON"), start():
        raise ValueError("no JSON")
    assert counted(metrics) == {"error": 1}


def plain(token, **fields):
    return SequenceOutput(request_id="r-0", token_ids=[token], **fields)


async def test_a_tap_takes_what_comes_while_the_reader_waits(start, engine):
    with start() as generation:
        seen = []

        def tap(output):
            if output.finish_reason is not None:
                return False
            seen.extend(generation.absorb([output]))
            return True

        generation.tap(tap)
        # Nobody waits yet: it is the reader's.
        engine.box.put(plain(300), is_last=True)
        assert [d.token_ids for d in await generation.next()] == [[300]]
        reader = asyncio.create_task(generation.next())
        await asyncio.sleep(0)
        engine.box.put(plain(301), is_last=True)
        await asyncio.sleep(0)
        assert ([d.token_ids for d in seen], reader.done()) == ([[301]], False)
        # Others are known to be behind it: all go to the reader, at once.
        engine.box.put(plain(302))
        engine.box.put(plain(303), is_last=True)
        assert [d.token_ids for d in await reader] == [[302], [303]]
        engine.box.put(plain(304, finish_reason="length"), is_last=True)
        assert [d.finish_reason for d in await generation.next()] == ["length"]


async def test_a_reader_hears_of_an_end_that_its_tap_has_found(start, engine, metrics):
    with start(stop=("e",)) as generation:
        seen = []
        generation.tap(lambda output: bool(seen.extend(generation.absorb([output])) or True))
        text = generation.runs[0].answers[0]._detokenizer._tokenizer.encode("e", add_special_tokens=False)
        reader = asyncio.create_task(generation.next())
        await asyncio.sleep(0)
        engine.box.put(SequenceOutput(request_id="r-0", token_ids=text, scheduled=1.0), is_last=True)
        assert await reader == []
        assert [d.finish_reason for d in seen] == ["stop"]
    assert counted(metrics) == {"stop": 1}


async def test_an_error_of_a_tap_is_its_readers(start, engine):
    def tap(output):
        raise ValueError("cannot be encoded")

    with start() as generation:
        generation.tap(tap)
        reader = asyncio.create_task(generation.next())
        await asyncio.sleep(0)
        engine.box.put(plain(300), is_last=True)
        with pytest.raises(ValueError, match="cannot be encoded"):
            await reader
