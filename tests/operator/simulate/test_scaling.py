"""`pagetide simulate FILE`: the model of a server against arithmetic, and the autoscaler on replays."""

import json
import random
import sys
from array import array

import pytest

from pagetide_operator.simulate import command
from pagetide_operator.simulate.controllers import ConcurrencyKpa, Fixed, Pagetide, QueueHpa
from pagetide_operator.simulate.replay import Replay
from pagetide_operator.simulate.scaling import Goals, figures, loaded, turning_times
from pagetide_operator.simulate.server import ServerModel
from pagetide_server.bench.figures import Outcome, summarize
from pagetide_server.bench.report import document
from pagetide_spec.resource import parse
from pagetide_spec.traces import BLOCK_TOKENS, Row

MODEL = ServerModel(prefill_rate=8000, max_seqs=128, kv_tokens=200_000, batched_tokens=4096)


def scaling(**fields):
    spec = {"model": {"uri": "hf://org/name"}, "autoscaling": {"maxReplicas": 12, **fields}}
    head = {"apiVersion": "pagetide.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "llm"}}
    return parse({**head, "spec": spec}).autoscaling


def poisson(rate, seconds, seed=1, start=0.0):
    chance, at, rows = random.Random(seed), start, []
    while (at := at + chance.expovariate(rate)) < start + seconds:
        rows.append(Row(at, 1 + int(chance.expovariate(1 / 1000)), 1 + int(chance.expovariate(1 / 200))))
    return rows


def play(rows, controller, replicas=1, model=MODEL):
    return Replay(rows, model, controller, replicas).run()


def desired_at(played, time):
    return [wanted for at, wanted, *_ in played.timeline if at <= time][-1]


def test_one_request_takes_its_prefill_and_its_steps():
    model = ServerModel(prefill_rate=1000, step_s=0.01, sequence_s=0.002, batched_tokens=400)
    (job,) = play([Row(5.0, 1000, 11)], Fixed(1), model=model).jobs
    assert job.first == pytest.approx(5 + 1.0 + 3 * 0.01), "three chunks of at most 400 tokens"
    assert job.ended == pytest.approx(job.first + 10 * 0.012)


def test_a_prefill_stalls_those_that_decode_by_one_step():
    model = ServerModel(prefill_rate=1000, step_s=0.01, sequence_s=0.0)
    alone = play([Row(0.0, 10, 101)], Fixed(1), model=model).jobs[0]
    jobs = play([Row(0.0, 10, 101), Row(0.5, 200, 1)], Fixed(1), model=model).jobs
    assert jobs[0].ended - alone.ended == pytest.approx(0.2)
    assert jobs[1].first == pytest.approx(0.5 + 0.21, abs=0.011), "it joins with the next step"


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_seqs": 1}, id="one place in the batch"),
        pytest.param({"kv_tokens": 150}, id="memory for one"),
    ],
)
def test_who_finds_no_room_waits(limit):
    model = ServerModel(prefill_rate=1e9, step_s=0.01, sequence_s=0.0, **limit)
    first, second = play([Row(0.0, 50, 51), Row(0.0, 50, 51)], Fixed(1), model=model).jobs
    assert second.first == pytest.approx(first.ended + 0.01)


def test_cached_blocks_are_not_computed_again():
    row = Row(0.0, 2 * BLOCK_TOKENS, 1, (1, 2))
    again = Row(9.0, 2 * BLOCK_TOKENS + 100, 1, (1, 2, 3))
    played = play([row, again], Fixed(1), model=ServerModel(prefill_rate=1000, step_s=0.01))
    assert played.jobs[1].first == pytest.approx(9 + 0.1 + 0.01)
    assert (played.query_tokens, played.hit_tokens) == (4 * BLOCK_TOKENS + 100, 2 * BLOCK_TOKENS)


def test_what_a_scrape_would_find_agrees_with_the_jobs():
    replay = Replay(poisson(10, 60), MODEL, Fixed(1), 1)
    played = replay.run()
    (pod,) = replay._all
    sample = pod.server.sample(99.0)
    assert (sample.running, sample.waiting, sample.kv_used) == (0, 0, 0)
    assert sample.prefills == sample.queue[-1][1] == len(played.jobs)
    assert sample.prompt_tokens == sum(job.row.prompt_tokens for job in played.jobs)


@pytest.mark.parametrize("controller", [Pagetide(scaling(), 60), QueueHpa(scaling(), 5), ConcurrencyKpa(scaling(), 50)])
def test_every_request_is_answered_whoever_scales(controller):
    played = play(poisson(3, 200) + poisson(30, 200, start=200) + poisson(1, 900, start=400), controller)
    assert all(job.arrived < job.first <= job.ended for job in played.jobs)
    assert max(wanted for _, wanted, *_ in played.timeline) > 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_step_of_ten_times_the_load_is_answered_within_fifteen_seconds(seed):
    """Six replicas hold it, five do not; what is wanted by then is there a start-up time later."""
    rows = poisson(3, 600, seed) + poisson(30, 300, seed, start=600)
    hold = {n: figures(play(poisson(30, 200, seed), Fixed(n), n), Goals())["ttft_attainment"] for n in (5, 6)}
    assert hold[5] < 0.5 < 0.99 < hold[6]
    fast = scaling(behavior={"scaleUp": {"policies": [{"type": "Percent", "value": 900, "periodSeconds": 15}]}})
    played = play(rows, Pagetide(fast, 60))
    assert desired_at(played, 599) <= 2
    assert desired_at(played, 615) >= 6


@pytest.mark.parametrize("rate", [8, 16])
def test_steady_load_turns_no_more_than_once_in_five_minutes(rate):
    found = figures(play(poisson(rate, 1800), Pagetide(scaling(), 60), 2), Goals())
    assert found["most_turns_in_5_min"] <= 1
    assert found["ttft_attainment"] > 0.94, "two replicas at the begin are too few"


def test_it_sleeps_and_wakes_for_the_first_request():
    zero = scaling(minReplicas=0, idleSeconds=60)
    rows = [Row(0.0, 100, 10), *(Row(500.0, 100, 10) for _ in range(100))]
    played = play(rows, Pagetide(zero, 60))
    assert desired_at(played, 499) == 0
    assert all(560 < job.first < 570 for job in played.jobs[1:])
    assert [d["winner"] for d in played.controller.decisions] == ["idle", "wake"]


def test_nobody_is_removed_with_requests_in_flight():
    """Whoever leaves is drained first, and its requests end."""
    played = play(poisson(20, 300) + poisson(2, 900, start=300), Pagetide(scaling(), 60), 8)
    assert desired_at(played, 1200) < 8
    assert all(job.ended for job in played.jobs)


def test_load_repeats_requests_and_keeps_their_shape():
    rows = poisson(2, 100)
    assert len(loaded(rows, 3)) == 3 * len(rows)
    assert loaded(rows, 1) == rows
    assert max(row.at for row in loaded(rows, 3)) < 111


def test_turns():
    assert turning_times([(1, 1), (2, 3), (3, -1), (4, -1), (5, 2)]) == [3, 5]


SERVICE = """
apiVersion: pagetide.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {uri: hf://org/name}
  engine: {maxNumSeqs: 128}
"""


@pytest.fixture
def files(tmp_path):
    trace, service = tmp_path / "trace.csv", tmp_path / "service.yaml"
    lines = [f"2023-11-16 18:15:{at:02}.0000000,1000,50" for at in range(60)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    service.write_text(SERVICE + "  autoscaling: {maxReplicas: 4}\n")
    return trace, service


def test_the_command_compares_all(files, tmp_path, capsys):
    trace, service = files
    target = tmp_path / "out.json"
    assert command.main([f"--trace={trace}", str(service), f"--json={target}", "--prefill-rate=500", "--fixed=1"]) == 0
    found = json.loads(target.read_text())
    assert list(found["controllers"]) == ["pagetide", "HPA on queue length", "KPA on concurrency", "fixed: 1"]
    assert (found["setting"]["model"]["prefill_rate"], found["setting"]["model"]["max_seqs"]) == (500, 128)
    assert found["controllers"]["pagetide"]["decisions"][0]["inputs"]["asks"]
    assert command.main([f"--trace={trace}", str(service)]) == 0
    assert "replica-hours" in capsys.readouterr().out


def test_bench_calibrates_the_model(files, tmp_path):
    """Ten answers, each 900 tokens of prompt of which 100 were cached, 0.2 s to the first token, 0.03 s between two."""
    trace, service = files
    bench, target = tmp_path / "bench.json", tmp_path / "out.json"
    times = array("d", (0.2 + 0.03 * n for n in range(5)))
    answer = Outcome(0.0, 5, 0.0, 0.2, 0.32, times, prompt_tokens=900, output_tokens=5, cached_tokens=100)
    found = summarize([answer] * 10)
    bench.write_text(json.dumps(document(found, {})))
    assert command.main([f"--trace={trace}", str(service), f"--calibrate={bench}", f"--json={target}"]) == 0
    model = json.loads(target.read_text())["setting"]["model"]
    assert model["prefill_rate"] == pytest.approx(4000)
    assert model["step_s"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["{service}", "--calibrate={trace}"], "is not what `pagetide bench --json", id="bench"),
        pytest.param(["{service}", "--calibrate=nowhere"], "--calibrate: 'nowhere': No such file", id="no bench"),
        pytest.param(["nowhere.yaml"], "nowhere.yaml': cannot be read", id="no service"),
        pytest.param(["{fixed}"], "has no spec.autoscaling", id="a service that is not scaled"),
        pytest.param([], "give either --routing or a service's FILE", id="neither"),
        pytest.param(["{service}", "--routing"], "give either --routing or a service's FILE", id="both"),
        pytest.param(
            ["--routing", "--load=5"], "--load: is of use only with a FILE", id="scaling's flag for the router"
        ),
        pytest.param(["--routing", "--plot=x"], "--plot: is of use only with a FILE", id="no picture of the router"),
        pytest.param(
            ["{service}", "--replicas=3"], "--replicas: is of use only with --routing", id="the router's flag"
        ),
        pytest.param(["{service}", "--step-ms=0"], "must be above 0 and finite", id="a step of no time"),
        pytest.param(["{service}", "--load=1000000000"], "at most 10000", id="more than memory holds"),
        pytest.param(["{service}", "--fixed=1000000000"], "at most 10000", id="a fleet without end"),
    ],
)
def test_wrong_calls_are_one_clear_line(files, tmp_path, capsys, arguments, words):
    trace, service = files
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text(SERVICE)
    given = [a.format(service=service, trace=trace, fixed=fixed) for a in arguments]
    try:
        code = command.main([f"--trace={trace}", *given])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_plot_is_a_png(files, tmp_path):
    pytest.importorskip("matplotlib")
    trace, service = files
    assert command.main([f"--trace={trace}", str(service), f"--plot={tmp_path / 'out.png'}"]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_install(files, tmp_path, capsys, monkeypatch):
    trace, service = files
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command.main([f"--trace={trace}", str(service), f"--plot={tmp_path / 'out.png'}"]) == 2
    assert "pip install -e '.[plot]'" in capsys.readouterr().err
