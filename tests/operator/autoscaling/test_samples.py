"""Scrapes and windows: what is read out of a server's metrics, and what several of them come to."""

import math

import pytest

from pagetide_operator.autoscaling.samples import parse_sample
from pagetide_operator.autoscaling.windows import STALE_S, Window, merged, quantile
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.wire.messages import EngineStats, Ready

TEXT = """# HELP pagetide_requests_running Sequences in the running batch.
# TYPE pagetide_requests_running gauge
pagetide_requests_running{model_name="a \\"b\\" {c}"} 3.0
pagetide_requests_waiting{model_name="m"} 4.0 1395066363000
pagetide_requests_swapped{model_name="m"} 1.0
pagetide_oldest_waiting_seconds{model_name="m"} 1.5
pagetide_max_num_seqs{model_name="m"} 16.0
pagetide_batch_utilization_ratio{model_name="m"} 0.5
pagetide_kv_capacity_tokens{model_name="m"} 1600.0
pagetide_kv_blocks{model_name="m",state="free"} 50.0
pagetide_kv_blocks{model_name="m",state="cached"} 30.0
pagetide_kv_blocks{model_name="m",state="used"} 20.0
pagetide_kv_blocks{model_name="m",state="swapped"} 7.0
pagetide_prompt_tokens_total{model_name="m"} 1e3
pagetide_prefix_cache_query_tokens_total{model_name="m"} 900
pagetide_prefix_cache_hit_tokens_total{model_name="m"} 300
pagetide_prefills_total{model_name="m"} 10
pagetide_request_queue_seconds_bucket{le="0.5",model_name="m"} 8.0
pagetide_request_queue_seconds_bucket{le="1.0",model_name="m"} 9.0
pagetide_request_queue_seconds_bucket{le="+Inf",model_name="m"} 10.0
pagetide_request_queue_seconds_count{model_name="m"} 10.0
pagetide_other_total{model_name="m"} NaN
"""


def test_the_figures_of_a_scrape():
    found = parse_sample(TEXT, 7.0)
    assert (found.at, found.running, found.waiting, found.oldest_waiting) == (7.0, 3, 5, 1.5)
    assert (found.kv_capacity, found.kv_used, found.kv_cached) == (1600, 320, 480)
    assert (found.prompt_tokens, found.query_tokens, found.hit_tokens, found.prefills) == (1000, 900, 300, 10)
    assert found.queue == ((0.5, 8), (1, 9), (math.inf, 10))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html>it works</html>", id="another server"),
        pytest.param('pagetide_requests_running{model_name="m"} 0\n', id="a server that still loads"),
        pytest.param(TEXT + "pagetide_prefills_total ten\n", id="no number"),
        pytest.param(TEXT + "pagetide_prefills_total NaN\n", id="not a number"),
        pytest.param(TEXT + "pagetide_prefills_total\n", id="cut off before the number"),
    ],
)
def test_what_is_no_servers_metrics_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_sample(text, 0.0)


def test_a_real_servers_metrics_are_read():
    metrics = ServerMetrics("m", "1", vllm=True)
    with pytest.raises(ValueError, match="kv_capacity_tokens"):
        parse_sample(metrics.render().decode(), 0.0)
    metrics.ready = Ready(
        max_model_len=64, vocab_size=8, eos_token_ids=[1], block_size=16, num_blocks=10, max_num_seqs=4,
        max_num_batched_tokens=64, num_swap_blocks=0, dtype="float32", device="cpu", attention="torch",
    )  # fmt: skip
    metrics.stats = EngineStats(running=2, waiting=3, swapped=1, blocks_free=4, blocks_cached=1, blocks_used=5)
    metrics.prefilled(100, 0.3)
    found = parse_sample(metrics.render().decode(), 0.0)
    assert (found.running, found.waiting, found.max_seqs, found.prompt_tokens, found.prefills) == (2, 4, 4, 100, 1)
    assert (found.kv_capacity, found.kv_used, found.kv_cached) == (160, 80, 16)
    assert found.queue[-1] == (math.inf, 1)


def test_a_window_spans_half_a_minute_and_counts_differences(sample, queued):
    window = Window()
    for at in range(0, 65, 5):
        window.add(sample(at, prompt_tokens=100 * at, hit_tokens=40 * at, query_tokens=100 * at, prefills=at))
    found = window.load(60)
    assert (found.query_tokens, found.hit_tokens) == (3000, 1200)
    assert (found.served, found.demand, found.full_rate) == (60, 60, 0)


def test_a_server_that_is_silent_has_no_load(sample):
    window = Window()
    assert window.load(0) is None
    window.add(sample(0))
    assert window.load(STALE_S) is not None
    assert window.load(STALE_S + 0.1) is None


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"prompt_tokens": 10, "prefills": 1}, id="fewer tokens"),
        pytest.param({"prompt_tokens": 900, "prefills": 99, "queue": ((math.inf, 3.0),)}, id="fewer in the histogram"),
    ],
)
def test_a_total_that_goes_back_begins_a_new_window(sample, later):
    window = Window()
    window.add(sample(0, prompt_tokens=500, prefills=50, queue=((math.inf, 50.0),)))
    window.add(sample(5, **later))
    assert window.load(5).served == 0
    window.add(sample(10, **{**later, "prompt_tokens": later["prompt_tokens"] + 50}))
    assert window.load(10).served == 10


def test_a_clock_that_was_set_back_begins_a_new_window(sample):
    window = Window()
    for at in (3600, 3605):
        window.add(sample(at, running=1))
    window.add(sample(3604, running=5))
    assert window.load(3605).running == 1, "what comes late is dropped"
    for at in (0, 5):
        window.add(sample(at, running=9))
    assert window.load(5).running == 9


def test_what_a_server_could_run_before_it_started_anew_is_void(sample):
    window = Window()
    window.add(sample(0, running=2, batch_utilization=1.0, prefills=5))
    assert window.load(0).capacity == 2
    window.add(sample(5, prefills=0))
    assert window.load(5).capacity == 10


def test_demand_of_a_burst_counts_what_piles_up(sample):
    """Ten requests per second of 100 tokens come, one is computed; the quiet time before does not hide it."""
    window = Window()
    for at in range(0, 30, 5):
        window.add(sample(at, prompt_tokens=100 * at, prefills=at))
    for at in (30, 35):
        window.add(sample(at, prompt_tokens=100 * at, prefills=at, waiting=9 * (at - 25)))
    assert window.load(35).demand == pytest.approx(1000)


def test_requests_that_were_given_up_are_gone_with_the_next_look(sample):
    window = Window()
    for at, waiting in ((0, 0), (5, 50), (10, 50), (15, 0)):
        window.add(sample(at, waiting=waiting, oldest_waiting=at if waiting else 0))
    found = window.load(15)
    assert (found.waiting, found.oldest_waiting, found.demand, found.backlog, found.lacks_room) == (0, 0, 0, 0, False)


def test_a_full_replicas_rate_is_taken_while_requests_wait(sample):
    window = Window()
    for at, waiting in ((0, 0), (5, 0), (10, 2), (15, 1)):
        window.add(sample(at, waiting=waiting, prompt_tokens=0 if at < 10 else 70 * (at - 10)))
    assert window.load(15).full_rate == 0, "it may have been full for a moment only"
    window.add(sample(20, waiting=5, prompt_tokens=700))
    assert window.load(20).full_rate == 70
    window.add(sample(25, waiting=0, prompt_tokens=1000))
    assert window.load(25).full_rate == 0


@pytest.mark.parametrize(
    ("waiting", "lacks_room"),
    [
        pytest.param([0, 0, 9], False, id="a burst has just come"),
        pytest.param([0, 9, 0], False, id="a burst has gone"),
        pytest.param([0, 9, 9], True, id="it stays"),
        pytest.param([9, 8, 7], True, id="it hardly falls"),
        pytest.param([9, 8, 6], False, id="it is being worked off"),
        pytest.param([9], False, id="the first look"),
    ],
)
def test_want_of_room(sample, waiting, lacks_room):
    window = Window()
    for count, number in enumerate(waiting):
        window.add(sample(5 * count, waiting=number))
    assert window.load(10).lacks_room == lacks_room


@pytest.mark.parametrize(
    ("scrapes", "capacity"),
    [
        pytest.param([(0, 0.0)], 10, id="idle since ever: what may run at most"),
        pytest.param([(2, 0.5)], 4, id="the memory admits four"),
        pytest.param([(2, 0.5), (0, 0.0)], 4, id="idle: as last told"),
        pytest.param([(3, 1.0)], 3, id="full"),
        pytest.param([(20, 0.5)], 10, id="never above what may run"),
    ],
)
def test_capacity_is_what_the_engine_admits(sample, scrapes, capacity):
    window = Window()
    for at, (running, ratio) in enumerate(scrapes):
        window.add(sample(at, running=running, batch_utilization=ratio))
    assert window.load(len(scrapes)).capacity == capacity


@pytest.mark.parametrize(
    ("waits", "share", "found"),
    [
        pytest.param([], 0.95, 0, id="none"),
        pytest.param([0.1] * 100, 0.95, 0.475, id="within the first bucket"),
        pytest.param([0.1] * 50 + [3] * 50, 0.95, 3.8, id="linear within a bucket"),
        pytest.param([9], 0.95, 4, id="beyond the last bound"),
    ],
)
def test_quantiles(queued, waits, share, found):
    assert quantile(queued(*waits), share) == pytest.approx(found)


def test_histograms_of_all_replicas_together(queued):
    assert merged([queued(0.1), (), queued(3, 3)]) == queued(0.1, 3, 3)
    assert merged([]) == ()
