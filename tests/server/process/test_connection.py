"""Both ends of the connection between the two processes, without processes: the engine's end runs in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pagetide_server.process.channels import READ_AT_ONCE, Channel, ClientGone
from pagetide_server.process.link import DRAIN_AT_ONCE, Link
from pagetide_server.wire.messages import AbortRequest, Loading

LONG = "x" * 20_000_000
# Together far more than the system keeps for a reader that does not read.
MANY, PIECE = 4000, "x" * 10_000
SECONDS = 20


class Both:
    """A link and the channel at its other end.

    Attributes:
        heard: the engine's messages that the link has handled, each with whether it was the last one.
        bad: the stage of those that cannot be handled.
    """

    bad = "bad"

    def __init__(self):
        self.heard: list[tuple[Loading, bool]] = []
        self.link = Link(asyncio.get_running_loop(), self._handle)
        # As an engine process inherits it.
        self.engine_end = self.link.engine_end.dup()
        self.link.engine_end.close()
        self.channel = Channel(self.engine_end)

    def _handle(self, message, is_last):
        self.heard.append((message, is_last))
        if message.stage == self.bad:
            raise ValueError("cannot handle this")

    def close(self):
        """As the end of the API process does."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def numbers(self):
        return [message.fraction for message, _ in self.heard]

    async def heard_all(self, count):
        async with asyncio.timeout(SECONDS):
            while len(self.heard) < count:  # noqa: ASYNC110 - what is waited for comes from a thread
                await asyncio.sleep(0.001)


@pytest.fixture
async def both():
    found = Both()
    yield found
    found.close()
    found.engine_end.close()


@pytest.fixture
def thread():
    """Runs functions in threads; waits for their ends."""
    started: list[threading.Thread] = []

    def start(work):
        started.append(threading.Thread(target=work, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.join(SECONDS)
        assert not one.is_alive()


def send_many(channel, stage="loading", count=MANY):
    for number in range(count):
        channel.send(Loading(stage=stage, fraction=number))


async def test_messages_that_have_arrived_together_are_handled_in_turns(both):
    send_many(both.channel, count=2 * DRAIN_AT_ONCE + 1)
    both.link.receive()
    assert both.numbers() == list(range(DRAIN_AT_ONCE))
    await both.heard_all(2 * DRAIN_AT_ONCE + 1)
    assert both.numbers() == list(range(2 * DRAIN_AT_ONCE + 1))
    assert [is_last for _, is_last in both.heard] == [False] * 2 * DRAIN_AT_ONCE + [True]


async def test_a_message_that_cannot_be_handled_holds_up_none_behind_it(both):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    for number in range(100):
        both.channel.send(Loading(stage="bad" if number in (10, 99) else "good", fraction=number))
    await both.heard_all(100)
    assert both.numbers() == list(range(100))
    assert [str(error) for error in errors] == ["cannot handle this"] * 2


async def test_a_long_message_from_the_engine(both, thread):
    thread(lambda: both.channel.send(Loading(stage=LONG, fraction=1)))
    await both.heard_all(1)
    assert both.heard[0][0].stage == LONG


async def test_a_long_message_to_the_engine(both):
    both.link.send(AbortRequest(LONG))
    both.link.send(AbortRequest("behind it"))
    seen = []
    while len(seen) < 2:
        seen += await asyncio.to_thread(both.channel.read, 1000 * SECONDS)
    assert [message.request_id for message in seen] == [LONG, "behind it"]


async def test_an_engine_waits_for_a_reader_that_stalls_and_loses_nothing(both, thread):
    sender = thread(lambda: send_many(both.channel, PIECE))
    # This blocks the event loop, which reads nothing meanwhile.
    sender.join(0.2)
    assert sender.is_alive()
    await both.heard_all(MANY)
    assert both.numbers() == list(range(MANY))


async def test_an_engine_that_waits_for_its_reader_notices_its_end(both, thread):
    gone = []

    def send():
        with pytest.raises(ClientGone):
            send_many(both.channel, PIECE)
        gone.append(True)

    sender = thread(send)
    sender.join(0.2)
    assert sender.is_alive()
    both.close()
    sender.join(SECONDS)
    assert gone


async def test_an_engine_that_reads_nothing_holds_up_nobody_and_loses_nothing(both):
    for number in range(MANY):
        both.link.send(AbortRequest(f"{number} {PIECE}"))
    seen = []
    while len(seen) < MANY:
        seen += await asyncio.to_thread(both.channel.read, 1000 * SECONDS)
    assert [message.request_id for message in seen] == [f"{number} {PIECE}" for number in range(MANY)]
    assert both.channel.read(0) == []


async def test_threads_that_send_do_not_mix_their_messages(both, thread):
    senders = {"heartbeat": 200, PIECE: 2000}
    for stage, count in senders.items():
        thread(lambda stage=stage, count=count: send_many(both.channel, stage, count))
    await both.heard_all(sum(senders.values()))
    for stage, count in senders.items():
        assert [m.fraction for m, _ in both.heard if m.stage == stage] == list(range(count))


async def test_a_flood_of_messages_is_read_in_pieces(both):
    for number in range(READ_AT_ONCE + 5):
        both.link.send(AbortRequest(str(number)))
    assert [m.request_id for m in both.channel.read(None)] == [str(n) for n in range(READ_AT_ONCE)]
    assert [m.request_id for m in both.channel.read(None)] == [str(READ_AT_ONCE + n) for n in range(5)]
    assert both.channel.read(0) == []


async def test_an_idle_engine_notices_the_end_of_its_reader(both, thread):
    gone = []

    def wait():
        with pytest.raises(ClientGone):
            both.channel.read(None)
        gone.append(True)

    waiter = thread(wait)
    both.close()
    waiter.join(SECONDS)
    assert gone


async def test_what_an_ended_engine_has_sent_is_read_to_its_end(both):
    both.link.send(AbortRequest("never read"))
    send_many(both.channel, count=3 * DRAIN_AT_ONCE)
    both.engine_end.close()
    both.link.receive_last()
    assert both.numbers() == list(range(3 * DRAIN_AT_ONCE))


async def test_the_end_of_the_engine_is_announced_once_and_sending_goes_nowhere(both, monkeypatch):
    reads = []
    read = both.link._read
    monkeypatch.setattr(both.link, "_read", lambda: reads.append(read()))
    both.engine_end.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert reads == [False]
    both.link.send(AbortRequest("nobody"))
    assert not both.link._unsent
