"""`pagetide up` with real servers: a tiny random model for its faults, Gemma 3 270M for the demo."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOAD_S = 120  # torch alone takes tens of seconds to import on a busy machine


@pytest.fixture
def up(run, manifest, tiny_model, until):
    """A running `pagetide up` with the tiny model under the name `tiny`, ready."""
    file = manifest(
        "tiny",
        model={"uri": f"file://{tiny_model('llama')}"},
        engine={"kvCacheMemoryGib": 0.05, "swapSpaceGib": 0, "maxModelLen": 256},
        drainSeconds=10,
    )
    one = run("-m", "pagetide_cli.main", "up", "--port=0", file)
    until(lambda: "listening on" in one.text or one.process.poll() is not None, LOAD_S)
    assert one.process.poll() is None, one.text
    return one


def text_of(one, prompt: str, **options) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **options}
    with one.post(body) as response:
        return json.load(response)["choices"][0]["text"]


def streamed(one, prompt: str) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
    with one.post(body) as response:
        events = [line[6:] for line in response.read().splitlines() if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    return "".join(c["text"] for e in events for c in json.loads(e)["choices"])


@pytest.mark.slow
def test_answers_are_the_same_alone_together_and_streamed(up):
    prompts = [f"Question {i}: " + "the quick brown fox " * (i % 5) for i in range(16)]
    alone = [text_of(up, p) for p in prompts]
    assert len(set(alone)) > 8
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda p: streamed(up, p), prompts)) == alone
    (card,) = up.get("/v1/models")["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 256)
    assert up.end() == 0
    assert up.left_over() == []


@pytest.mark.slow
def test_a_killed_engine_is_replaced_and_a_killed_runner_leaves_none(up, until):
    server = up.service("tiny")["pods"][0]["pid"]
    before = text_of(up, "abc")
    for pid in set(up.left_over()) - {up.process.pid, server}:
        os.kill(pid, signal.SIGKILL)
    until(lambda: up.service("tiny")["pods"][0]["restarts"] == 1, 30)
    until(lambda: up.service("tiny")["readyReplicas"] == 1, LOAD_S)
    assert "tiny-0: exit code " in up.text
    assert text_of(up, "abc") == before
    assert len(up.left_over()) >= 3, "runner, server and engine"
    up.end(signal.SIGKILL)
    until(lambda: not up.left_over(), 10)


@pytest.mark.slow
def test_a_setting_that_only_the_server_can_refuse_ends_with_its_words(run, manifest, tiny_model):
    file = manifest("tiny", model={"uri": f"file://{tiny_model('llama')}"}, engine={"maxModelLen": 100_000})
    one = run("-m", "pagetide_cli.main", "up", "--port=0", file)
    assert one.process.wait(LOAD_S) == 2, one.text
    assert "100000" in one.text
    assert one.left_over() == []


@pytest.mark.slow
@pytest.mark.real_model
def test_the_demo_streams_a_real_model_and_hits_the_prefix_cache(run, tmp_path):
    shutil.copytree(ROOT / "manifests" / "samples", tmp_path / "manifests" / "samples")
    one = run("-m", "pagetide_operator.local.demo")
    assert one.process.wait(280) == 0, one.text
    figures = re.findall(r"(\d+) tokens at ([\d.]+) tokens/s, (\d+) of (\d+) prompt tokens", one.text)
    assert len(figures) == 2, one.text
    (_, _, first_cached, _), (tokens, rate, cached, prompt) = figures
    assert int(first_cached) == 0
    assert int(tokens) > 1
    assert float(rate) > 0
    assert 48 <= int(cached) < int(prompt), "the prompts share several blocks of 16 tokens"
    assert re.search(r"^gemma-3-270m .* True +1 +1 +Ready ", one.text, re.MULTILINE)
    assert one.left_over() == []
