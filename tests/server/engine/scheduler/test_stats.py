"""What the scheduler says of its state, and logs of its blocks."""

from __future__ import annotations

import pytest

from pagetide_server.engine.scheduler import Scheduler

from .requests import config, request


def test_stats_of_a_run(engine):
    made = engine(request("a", arrival=3.0), request("b", arrival=4.0), request("c", arrival=5.0), max_num_seqs=1)
    stats = made.scheduler.stats()
    assert (stats.running, stats.waiting, stats.oldest_arrival) == (0, 3, 3.0)
    made.step()
    stats = made.scheduler.stats()
    assert (stats.running, stats.waiting, stats.oldest_arrival) == (1, 2, 4.0)
    assert (stats.blocks_used, stats.blocks_free + stats.blocks_cached + stats.blocks_used) == (2, 32)
    made.run()
    stats = made.scheduler.stats()
    assert (stats.steps, stats.block_allocations, stats.prefix_query_tokens) == (24, 9, 15)
    assert made.scheduler.prefix_lengths.prompts == 3


def test_a_preempted_sequence_waits_but_is_not_the_oldest_that_waits(engine):
    made = engine(request("a", 4, max_tokens=12), request("b", 4, max_tokens=12, arrival=1.0), num_blocks=5)
    while not made.scheduler.stats().preemptions_recompute:
        made.step()
    stats = made.scheduler.stats()
    assert (stats.waiting, stats.oldest_arrival) == (1, None)


@pytest.mark.parametrize(
    ("prompt", "answer", "seqs", "admissible"),
    [
        pytest.param(8, 8, 64, 10, id="memory: 128 tokens at 12 on average over a life"),
        pytest.param(8, 8, 6, 6, id="max_num_seqs"),
        pytest.param(60, 4, 64, 2, id="long prompts"),
    ],
)
def test_admissible_sequences(engine, prompt, answer, seqs, admissible):
    made = engine(request("a", prompt, max_tokens=answer), max_num_seqs=seqs)
    assert made.scheduler.stats().admissible_seqs == seqs
    made.run()
    assert made.scheduler.stats().admissible_seqs == admissible


def test_every_allocation_and_release_is_logged():
    events = []
    scheduler = Scheduler(config(), lambda *event: events.append(event))
    scheduler.add(request("a", 6, n=2, max_tokens=2))
    scheduler.settle(scheduler.schedule(), [1, 2])
    scheduler.settle(scheduler.schedule(), [1, 2])
    assert events == [
        ("allocate", "a", 0, [0, 1]),
        ("allocate", "a", 1, [0, 1]),
        ("allocate", "a", 0, [2]),
        ("release", "a", 0, [1]),
        ("release", "a", 1, [0, 1]),
        ("release", "a", 0, [0, 2]),
    ]
