"""`pagetide up` in a process of its own, with fake replicas: what a person sees, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request

import pytest


def test_two_services_behind_one_address(up, manifest):
    one = up(manifest("small", replicas=2), manifest("large", model={"uri": "hf://org/large", "servedName": "big"}))
    assert {m["id"]: m["max_model_len"] for m in one.get("/v1/models")["data"]} == {"small": 64, "big": 64}
    # Another beginning each time: one that is known goes where it was before.
    pids = {json.load(one.post({"model": "small", "prompt": f"{i} abc"}))["pid"] for i in range(24)}
    assert pids == {p["pid"] for p in one.service("small")["pods"]}
    assert json.load(one.post({"model": "big", "prompt": "abc"}))["choices"][0]["text"] == "cba"
    header, small, large = [line.split() for line in one.text.splitlines() if line[:5] in ("NAME ", "small", "large")]
    assert header == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "REASON", "AGE"]
    assert small[2:6] == ["True", "2", "2", "Ready"]
    assert large[1:6] == ["hf://org/large", "True", "1", "1", "Ready"]
    assert "logs of replicas: .pagetide/logs" in one.text


def test_with_json_logs_every_line_is_an_object(up, manifest, until):
    one = up(manifest("a", resources={"limits": {"cpu": 1}}), manifest("b-wrong"), "--log-format=json")
    until(lambda: "listening on" in one.text)
    assert one.end() == 0
    lines = [json.loads(line) for line in one.text.splitlines()]
    said = {line["message"].partition(":")[0]: line["level"] for line in lines}
    assert {"a", "a is Ready", "logs of replicas", "listening on http"} <= said.keys()
    assert said["b-wrong-0"] == "error"


def test_a_full_disk_under_stdout_ends_no_replica(run, fake_up, manifest, until):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"exec {sys.executable} {fake_up} --port={port} {manifest('a')} > /dev/full"
    one = run("-c", command, program="/bin/sh")
    until(lambda: "stdout cannot be written: No space left on device; NAME " in one.text)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as response:
        assert json.load(response)["services"][0]["readyReplicas"] == 1
    assert one.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(number, up, manifest):
    one = up(manifest("a", replicas=2))
    assert one.url
    assert len(one.left_over()) == 3
    assert one.end(number) == 0
    assert one.left_over() == []


def test_a_signal_before_anything_is_ready_ends_everything(up, manifest, until):
    one = up(manifest("a-crash"), manifest("b"))
    until(lambda: "logs of replicas" in one.text)
    assert one.end() == 0
    assert one.left_over() == []


def test_a_stream_under_way_finishes_before_the_end(up, manifest):
    one = up(manifest("a"))
    with one.post({"model": "a", "prompt": "x", "stream": True, "max_tokens": 20}) as response:
        assert b'"0 "' in response.readline()
        one.process.send_signal(signal.SIGTERM)
        *_, last, done = response.read().strip().split(b"\n\n")
        assert b'"19 "' in last
        assert done == b"data: [DONE]"
    assert one.process.wait(20) == 0


def test_a_second_ctrl_c_does_not_wait(up, manifest, until):
    one = up(manifest("a-stubborn"))
    assert one.url
    one.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in one.text)
    assert one.end(signal.SIGINT, seconds=5) == 0
    assert one.left_over() == []


def test_a_replica_that_ignores_sigterm_is_killed_after_its_time(up, manifest, until):
    one = up(manifest("a-stubborn", drainSeconds=1))
    assert one.url
    assert one.end() == 0
    assert one.left_over() == []


def test_nothing_survives_a_killed_runner(up, manifest, until):
    one = up(manifest("a", replicas=2))
    assert one.url
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not one.left_over(), 5)


def test_a_replica_that_dies_is_told_and_started_again(up, manifest, until):
    one = up(manifest("a", replicas=2))
    before = {p["name"]: p["pid"] for p in one.service("a")["pods"]}
    with pytest.raises(urllib.error.HTTPError, match="502"):
        # It kills both: the one that it is sent to and the one that takes over.
        one.post({"model": "a", "prompt": "die"})
    until(lambda: "a is Ready" in one.text)
    until(lambda: one.service("a")["readyReplicas"] == 2)
    after = {p["name"]: p["pid"] for p in one.service("a")["pods"]}
    assert all(after[name] != before[name] for name in before)
    assert all(p["restarts"] == 1 for p in one.service("a")["pods"])
    assert "a-0: exit code 3" in one.text
    assert "a is not Ready" in one.text
    assert json.load(one.post({"model": "a", "prompt": "ab"}))["choices"][0]["text"] == "ba"


def test_a_killed_replica_leaves_nothing_of_its_own_behind(up, manifest, until):
    one = up(manifest("a-nested"))
    pid = one.service("a-nested")["pods"][0]["pid"]
    assert len(one.left_over()) == 3
    os.kill(pid, signal.SIGKILL)
    until(lambda: one.service("a-nested")["pods"][0]["restarts"] == 1)
    until(lambda: one.service("a-nested")["readyReplicas"] == 1)
    assert len(one.left_over()) == 3, "runner, replica and its child; the first replica's child is gone"
    assert "killed by SIGKILL; next start" in one.text
    assert one.end() == 0
    assert one.left_over() == []


def test_one_broken_service_does_not_stop_the_other(up, manifest, until):
    one = up(manifest("a-crash"), manifest("b"), manifest("c-wrong"))
    assert json.load(one.post({"model": "b", "prompt": "ab"}))["choices"][0]["text"] == "ba"
    until(lambda: one.service("a-crash")["pods"][0]["restarts"] >= 2)
    crashing, wrong = one.service("a-crash")["conditions"][0], one.service("c-wrong")["conditions"][0]
    assert (crashing["status"], crashing["reason"]) == ("False", "CrashLoopBackOff")
    assert (wrong["status"], wrong["reason"]) == ("False", "WrongSetting")
    assert "exit code 1: RuntimeError: out of luck" in one.text
    assert "--max-model-len: 9: the model has only 8" in wrong["message"]
    assert one.service("c-wrong")["pods"][0]["restarts"] == 0
    with pytest.raises(urllib.error.HTTPError, match="503"):
        one.post({"model": "a-crash", "prompt": "x"})
    assert one.process.poll() is None


def test_when_no_service_can_ever_be_ready_it_ends_and_says_why(up, manifest):
    one = up(manifest("a-wrong"), manifest("b-wrong", replicas=2))
    assert one.process.wait(20) == 2
    # The second replica of b need not get to its own word: the first one's says enough.
    said = [line for line in one.text.splitlines() if "--max-model-len: 9: the model has only 8" in line]
    assert {name for name in ("a-wrong", "b-wrong") if any(name in line for line in said)} == {"a-wrong", "b-wrong"}
    assert "no service can ever be ready" in one.text
    assert "listening on" not in one.text
    assert one.left_over() == []


def test_status_prints_the_table_of_a_run(up, run, manifest):
    one = up(manifest("a"))
    port = one.url.rpartition(":")[2]
    other = run("-m", "pagetide_cli.main", "up", "--status", f"--port={port}")
    assert other.process.wait(20) == 0
    assert other.text.splitlines()[1].split()[2:6] == ["True", "1", "1", "Ready"]


def test_the_official_client_streams_through(up, manifest):
    openai = pytest.importorskip("openai")
    one = up(manifest("a-stepwise"))
    with openai.OpenAI(base_url=one.url + "/v1", api_key="none") as client:
        assert [m.id for m in client.models.list()] == ["a-stepwise"]
        pieces = []
        for chunk in client.completions.create(model="a-stepwise", prompt="x", max_tokens=5, stream=True):
            pieces.append(chunk.choices[0].text)
            # Only this makes the replica send the next one: if one is held back on its way, the stream breaks.
            client.completions.create(model="a-stepwise", prompt="next")
        with pytest.raises(openai.NotFoundError, match="`b` does not exist"):
            client.completions.create(model="b", prompt="x")
    assert pieces == ["0 ", "1 ", "2 ", "3 ", "4 "]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_an_early_ctrl_c_is_quiet(command, run, manifest, until, tiny_model):
    # A model that loads: a command that ends by itself may get the signal when Python has no handler any more. Where
    # the interrupt comes inside exec(text), as in a dataclass, Python ends by SIGINT itself although we caught it.
    model = str(tiny_model("llama"))
    what = manifest("a", model={"uri": f"file://{model}"}) if command == "up" else model
    one = run("-X", "importtime", "-m", "pagetide_cli.main", command, "--port=0", what)
    until(lambda: "pagetide_spec" in one.text)  # its imports have begun: no handler of ours is set yet
    assert one.end(signal.SIGINT, seconds=60) in (0, 130, -signal.SIGINT), one.text
    assert "Traceback" not in one.text
    assert one.left_over() == []
