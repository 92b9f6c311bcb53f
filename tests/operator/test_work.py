"""The queue: each key once, never twice at the same time, later again after failures."""

import asyncio

from pagetide_operator.work import WorkQueue


async def test_a_key_that_waits_already_is_not_added_again():
    queue = WorkQueue()
    for key in "aab":
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.take(), await queue.take()] == ["a", "b"]


async def test_a_key_that_is_worked_on_comes_again_afterwards_and_not_before():
    queue = WorkQueue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.take() == "b"
    queue.done("a", failed=False)
    assert await queue.take() == "a"
    queue.done("a", failed=False)
    assert len(queue) == 0


async def test_failures_are_tried_again_each_time_later(monkeypatch):
    queue, delays = WorkQueue(), []
    monkeypatch.setattr(queue, "add_later", lambda key, seconds: delays.append(seconds))
    for failed in (True, True, True, False, True):
        queue.add("a")
        queue.done(await queue.take(), failed)
    assert delays == [0.5, 1.0, 2.0, 0.5]


async def test_of_two_times_the_earlier_counts():
    queue = WorkQueue()
    queue.add_later("a", 60)
    queue.add_later("a", 0.01)
    queue.add_later("a", 60)
    assert await asyncio.wait_for(queue.take(), 5) == "a"
