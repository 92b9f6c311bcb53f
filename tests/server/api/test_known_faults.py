"""Faults that servers of this kind are known for, as far as no other file tests them."""

from __future__ import annotations

import concurrent.futures as futures
import json
import socket
import threading

import pytest

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
# Of fake_core.py.
SLOW = 380
# Characters of two, three and four bytes; the tests' tokenizer has one token a byte for them.
TORN = "é漢😀"


@pytest.fixture(scope="module")
def ids_of(server):
    def find(text):
        return server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]

    return find


def dictated(ids):
    """Fields that make the fake model answer with these tokens."""
    return {"allowed_token_ids": ids, "max_tokens": len(ids)}


def events(answer):
    found = [e.removeprefix("data: ") for e in answer.text.strip().split("\n\n")]
    assert found[-1] == "[DONE]"
    return [json.loads(e) for e in found[:-1]]


def test_bytes_that_are_no_characters_do_not_break_the_json_of_logprobs(server, ids_of):
    ids = ids_of(TORN)
    assert len(ids) == len(TORN.encode())
    body = {"prompt": "x", "logprobs": 2, "return_token_ids": True, **dictated(ids)}
    (whole,) = server.complete(**body)["choices"]
    chunks = [e["choices"][0] for e in events(server.post(COMPLETION, stream=True, **body))]
    assert whole["text"] == "".join(c["text"] for c in chunks) == TORN
    assert len(whole["logprobs"]["tokens"]) == len(ids)
    assert [t for c in chunks for t in c["logprobs"]["tokens"]] == whole["logprobs"]["tokens"]
    # No chunk holds a part of a character: its tokens come with its last byte.
    assert [c["text"] for c in chunks if c["text"]] == list(TORN)


def test_bytes_of_chat_logprobs_add_up_to_the_text(server, ids_of):
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
    body |= dictated(ids_of(TORN))
    whole = server.post(CHAT, **body).json()["choices"][0]
    chunks = [e["choices"][0] for e in events(server.post(CHAT, stream=True, **body))]
    streamed = [e for c in chunks if c["logprobs"] for e in c["logprobs"]["content"]]
    assert streamed == whole["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in streamed).decode() == TORN


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_of_ids_may_end_inside_a_character(server, ids_of, cut):
    ids = ids_of("a😀b")
    answer = server.complete(prompt=ids[: 1 + cut], logprobs=1, **dictated(ids[1 + cut :]))
    assert answer["choices"][0]["text"] == "😀b"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_token_that_cannot_come_has_a_logprob_that_json_can_carry(server, ids_of, stream):
    body = {"logprobs": 3, "stream": stream, **dictated(ids_of("ab"))}
    answer = server.post(COMPLETION, prompt="x", **body)
    assert answer.status_code == 200
    choices = [e["choices"][0] for e in events(answer)] if stream else answer.json()["choices"]
    tops = [top for c in choices for top in c["logprobs"]["top_logprobs"]]
    assert {min(top.values()) for top in tops} == {-9999.0}
    body |= {"logprobs": True, "top_logprobs": 3}
    answer = server.post(CHAT, messages=[{"role": "user", "content": "x"}], **body)
    assert answer.status_code == 200
    assert "-9999.0" in answer.text


@pytest.mark.parametrize("prompt", ["", [""], ["x", ""], [[]], [[300], []]], ids=repr)
def test_an_empty_prompt_is_refused_and_kills_nothing(server, prompt):
    answer = server.post(COMPLETION, prompt=prompt, add_special_tokens=False)
    assert answer.status_code == 400, answer.text
    assert "prompt" in answer.json()["error"]["message"]
    assert server.complete(prompt="x", max_tokens=1)


def test_an_empty_text_to_which_the_tokenizer_adds_its_first_token_is_a_prompt(server):
    assert server.complete(prompt="", max_tokens=1)["usage"]["prompt_tokens"] == 1


def test_a_bad_grammar_between_good_ones_harms_only_itself(server):
    def status(grammar):
        return server.post(COMPLETION, prompt="x", max_tokens=2, guided_grammar=grammar).status_code

    assert [status(g) for g in ("right", "wrong", "right", "wrong", "right")] == [200, 400, 200, 400, 200]
    with futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(status, ["right", "wrong"] * 12)) == [200, 400] * 12


def test_equal_request_ids_at_the_same_time_do_not_collide(server):
    prompts = [[SLOW, 300 + i] for i in range(6)]
    start = threading.Barrier(len(prompts))

    def text(prompt):
        start.wait()
        answer = server.http.post(
            COMPLETION, json={"prompt": prompt, "max_tokens": 6, "stream": True}, headers={"x-request-id": "the-same"}
        )
        assert answer.headers["x-request-id"] == "the-same"
        return "".join(e["choices"][0]["text"] for e in events(answer))

    with futures.ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(text, prompts))
    assert found == [server.complete(prompt=p, max_tokens=6)["choices"][0]["text"] for p in prompts]


def test_a_request_that_no_memory_can_hold_is_refused_and_blocks_nobody(launch):
    with launch("--max-model-len=512", FAKE_BLOCKS="8") as server:  # room for 128 tokens
        for stream in (False, True):
            answer = server.post(COMPLETION, prompt=[300] * 100, max_tokens=100, stream=stream)
            assert answer.status_code == 400, answer.text
            assert "128" in answer.json()["error"]["message"]
        assert server.complete(prompt=[300] * 100, max_tokens=20)["usage"]["completion_tokens"] == 20
        assert not server.metric("pagetide_requests_waiting")


def test_two_hundred_clients_that_leave_at_once_leave_no_gauge_up_and_are_all_counted(launch, wait):
    names = ("requests_running", "requests_waiting", "kv_cache_utilization_ratio", "oldest_waiting_seconds")
    gauges = [f"pagetide_{name}" for name in (*names, "batch_utilization_ratio")]
    data = json.dumps({"prompt": [300], "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with launch(FAKE_STEP_S="0.1") as server:
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for client in sockets:
            client.sendall(head + data)
        wait(lambda: sum(map(server.metric, gauges[:2])) == 200, 20)
        for client in sockets:
            client.close()
        wait(lambda: not any(map(server.metric, gauges)), 20)
        assert server.metric("pagetide_requests_total", finish_reason="abort") == 200


def test_a_name_that_is_nobodys_is_not_served(server):
    for path, body in ((COMPLETION, {"prompt": "x"}), (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
        for name in ("no-such-model", "", "tiny ", "TINY"):
            assert server.post(path, model=name, **body).status_code == 404
        assert server.post(path, model="tiny", max_tokens=1, **body).status_code == 200
