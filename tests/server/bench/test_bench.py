"""The command against a small server: what it sends, what it measures, how it ends."""

from __future__ import annotations

import json
import signal
import time

import pytest

import pagetide_server.bench.load


def figures(bench, *arguments):
    code, out, err = bench(*arguments, "--json=-")
    assert code == 0, err
    return json.loads(out), err


def test_a_closed_loop_keeps_its_concurrency_and_measures_the_servers_pace(fake, bench):
    fake.first_s, fake.gap_s = 0.1, 0.02
    got, table = figures(
        bench, fake.url, "--concurrency=4", "--requests=12", "--input-tokens=20:40", "--output-tokens=6", "--warmup=2"
    )
    assert fake.most_open == 4
    assert len(fake.bodies) == 14
    assert got["requests"] == {"ok": 12, "failed": {}, "failure_details": {}, "cut_off": 0, "error_rate": 0.0}
    assert 0.1 <= got["ttft"]["p50"] < 0.2
    assert 0.02 <= got["inter_token"]["p50"] < 0.05
    assert got["inter_token"]["count"] == 12 * 5
    assert 0.2 <= got["e2e"]["p50"] < 0.5
    assert got["seconds"] >= 3 * 0.2
    sent = fake.bodies[2:]
    assert got["tokens"] == {
        "input": sum(len(b["prompt"]) for b in sent),
        "output": 72,
        "prefix_cache_hits": 36,
        "from_usage": True,
    }
    assert got["output_tokens_per_s"] == pytest.approx(72 / got["seconds"])
    assert "12 ok, 0 failed" in table


def test_a_request_asks_for_what_the_flags_say(fake, bench, monkeypatch):
    monkeypatch.setenv("PAGETIDE_API_KEY", "secret")
    figures(bench, fake.url, "--requests=3", "--input-tokens=20", "--output-tokens=5")
    body = fake.bodies[0]
    ids = body.pop("prompt")
    assert body == {
        "model": "fake", "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        "temperature": 0.0, "max_tokens": 5,
    }  # fmt: skip
    assert len(ids) == 20
    assert all(0 <= i < 1000 for i in ids)
    assert len({str(b["prompt"]) for b in fake.bodies[1:]} | {str(ids)}) == 3
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer secret"}


def test_connections_are_used_again(fake, bench):
    figures(bench, fake.url, "--requests=30", "--concurrency=3", "--output-tokens=1")
    assert len(fake.peers) <= 4


def test_prompts_share_beginnings(fake, bench):
    figures(bench, fake.url, "--requests=12", "--prefix-tokens=50", "--prefixes=2", "--input-tokens=10", "--seed=3")
    prompts = [b["prompt"] for b in fake.bodies]
    assert {len(p) for p in prompts} == {60}
    assert len({tuple(p[:50]) for p in prompts}) == 2
    assert len({tuple(p[50:]) for p in prompts}) == 12


@pytest.mark.parametrize("has_tokenize", [True, False], ids=["by /tokenize", "by usage"])
@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completions"])
def test_without_a_vocabulary_the_length_of_words_is_measured(fake, bench, has_tokenize, is_chat):
    fake.has -= {"vocab"} if has_tokenize else {"vocab", "tokenize"}
    got, _ = figures(
        bench, fake.url, "--requests=4", "--input-tokens=101", "--output-tokens=2", *(["--chat"] if is_chat else [])
    )
    # A word is two tokens here, and the chat's five are part of the 101.
    assert got["tokens"]["input"] in range(4 * 100, 4 * 102 + 1)
    assert got["ttft"]["count"] == 4
    assert ("messages" in fake.bodies[0]) is is_chat


def test_an_open_loop_counts_from_the_intended_arrival(fake, bench):
    fake.first_s = 0.1
    got, table = figures(
        bench, fake.url, "--rate=100", "--requests=10", "--concurrency=1", "--output-tokens=1", "--input-tokens=4"
    )
    # Ten arrive within about 0.1 s, and are answered one by one: the last has waited for nine others.
    assert fake.most_open == 1
    assert got["ttft"]["max"] > 0.7
    assert got["ttft"]["p50"] > 0.3
    assert got["send_lag"]["max"] > 0.6
    assert "sent late" in table


def test_an_open_loop_does_not_wait_for_answers(fake, bench):
    fake.first_s = 0.5
    got, _ = figures(bench, fake.url, "--rate=50", "--duration=0.5", "--output-tokens=1", "--input-tokens=4")
    assert fake.most_open > 10
    assert got["ttft"]["p99"] < 0.8


def test_a_trace_gives_times_lengths_and_shared_blocks(fake, bench, tmp_path):
    rows = [
        {"timestamp": 1000, "input_length": 1030, "output_length": 2, "hash_ids": [7, 8, 9]},
        {"timestamp": 1000, "input_length": 9000, "output_length": 2, "hash_ids": [7]},
        {"timestamp": 5000, "input_length": 600, "output_length": 3, "hash_ids": [7, 10]},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    got, log = figures(bench, fake.url, f"--trace={trace}", "--speed=10")
    first, second = (b["prompt"] for b in fake.bodies)
    assert (len(first), len(second)) == (1030, 600)
    assert first[:512] == second[:512] != first[512:1024]
    assert [b["max_tokens"] for b in fake.bodies] == [2, 3]
    assert 0.4 <= got["seconds"] < 1
    assert "1 of 3 requests are left out: longer than the model's 4096 tokens" in log


def test_several_tokens_an_event_share_their_gap(fake, bench):
    fake.gap_s, fake.per_event = 0.04, 4
    got, _ = figures(bench, fake.url, "--requests=2", "--output-tokens=13", "--concurrency=2")
    assert got["tokens"]["output"] == 26
    assert got["inter_token"]["count"] == pytest.approx(24)
    assert 0.01 <= got["inter_token"]["p50"] < 0.02


def test_queue_time_comes_from_the_servers_metrics(fake, bench):
    got, _ = figures(bench, fake.url, "--requests=5", "--output-tokens=1", "--warmup=3")
    assert got["queue"]["count"] == 5
    assert got["queue"]["mean"] == pytest.approx(0.03)
    assert got["queue"]["p50"] == pytest.approx(0.01 + 0.09 * 0.5)


def test_a_server_that_tells_little_is_measured_all_the_same(fake, bench):
    fake.has = {"tokenize"}
    fake.status = {}
    got, table = figures(bench, fake.url, "--model=any", "--requests=2", "--output-tokens=3", "--input-tokens=8")
    assert got["tokens"] == {"input": 16, "output": 6, "prefix_cache_hits": None, "from_usage": False}
    assert got["queue"] is None
    assert "reported no usage" in table
    assert "not reported by the server" in table


@pytest.mark.parametrize(
    ("fault", "failures"),
    [
        pytest.param({"status": {3: 429}}, {"HTTP 429": 2}, id="a full queue"),
        pytest.param({"error_after": 2}, {"error event": 6}, id="an error within the stream"),
        pytest.param({"break_after": 2}, {"broken off": 6}, id="a connection that breaks"),
        pytest.param({"first_s": 5}, {"timeout": 6}, id="no answer in time"),
    ],
)
def test_failures_are_counted_by_reason(fake, bench, fault, failures):
    for name, value in fault.items():
        setattr(fake, name, value)
    code, out, err = bench(fake.url, "--requests=6", "--output-tokens=4", "--timeout=0.5", "--json=-")
    got = json.loads(out)
    assert got["requests"]["failed"] == failures
    assert got["requests"]["ok"] == 6 - sum(failures.values())
    assert code == (0 if got["requests"]["ok"] else 1)
    assert f"failed: {next(iter(failures))}" in err
    assert ("no request succeeded" in err) is (got["requests"]["ok"] == 0)
    if "status" in fault:
        assert got["requests"]["failure_details"] == {"HTTP 429": "told to answer 429"}


def test_each_failed_slo_is_a_line_and_exit_code_1(fake, bench):
    fake.first_s = 0.1
    slos = ["--slo=ttft_p99=0.05", "--slo=ttft_p50=10", "--slo=error_rate=0", "--slo=requests_per_s=1e6"]
    code, out, err = bench(fake.url, "--requests=3", "--output-tokens=2", *slos)
    assert code == 1
    lines = [line for line in err.splitlines() if "SLO" in line]
    assert [line.split()[4] for line in lines] == ["ttft_p99", "requests_per_s"]
    assert "time to first token" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rate=0"], "argument --rate: 0: must be more than 0"),
        (["--rate=nan"], "argument --rate: nan: must be more than 0"),
        (["--input-tokens=9:3"], "argument --input-tokens: '9:3': must be a number of tokens, or LOW:HIGH"),
        (["--slo=ttft=1"], "argument --slo: 'ttft=1': must be NAME=LIMIT"),
        (["--trace=/no/such"], "--trace: '/no/such': cannot be read"),
        (["--rate=1", "--trace=x"], "--rate: 1.0: cannot be given together with --trace"),
        (["--json=/no/such/folder/x"], "--json: '/no/such/folder/x': cannot be written: No such file or directory"),
        (["--input-tokens=4090"], "the model takes 4096"),
        (["--model=other"], "--model: 'other': the server has only fake"),
        (["--rates=1"], "--rates=1: no such flag; did you mean --rate?"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(fake, bench, arguments, line):
    code, out, err = bench(fake.url, *arguments)
    assert (code, out) == (2, "")
    (said,) = [text for text in err.splitlines() if text.startswith("pagetide bench: ")]
    assert line in said


def test_a_server_that_is_not_there_is_one_line_and_exit_code_1(bench):
    code, _, err = bench("http://127.0.0.1:9")
    assert code == 1
    assert "http://127.0.0.1:9/v1/models does not answer: cannot connect to 127.0.0.1:9\n" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "loop", [pytest.param(["--concurrency=2"], id="closed loop"), pytest.param(["--rate=200"], id="open loop")]
)
def test_a_server_that_goes_away_ends_the_run_with_exit_code_1(fake, bench, monkeypatch, loop):
    monkeypatch.setattr(pagetide_server.bench.load, "GONE_SECONDS", 0.3)
    fake.gone_after = 2
    code, out, err = bench(fake.url, "--requests=100000", "--output-tokens=1", "--json=-", *loop)
    got = json.loads(out)["requests"]
    assert code == 1
    assert "the server is gone" in err
    assert got["ok"] >= 1
    assert sum(got["failed"].values()) < 1000, "nobody was there, and yet it went on"


def test_the_command_explains_itself_and_runs_as_a_process(fake, start):
    process = start("--help")
    assert "--concurrency" in process.communicate(timeout=20)[0]
    process = start(fake.url, "--requests=1", "--output-tokens=1")
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "1 ok, 0 failed" in out
    assert "model fake, seed " in err


def test_ctrl_c_prints_what_was_measured(fake, start):
    fake.gap_s = 0.05
    process = start(fake.url, "--duration=60", "--concurrency=2", "--output-tokens=4")
    begin = time.monotonic()
    while len(fake.bodies) < 7 and time.monotonic() < begin + 20:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "2 cut off" in out
    assert int(out.split()[1]) >= 4
    assert "Traceback" not in err
