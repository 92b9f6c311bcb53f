"""Raw sockets: clients that leave, stall, send half or rubbish."""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import http.client
import json
import random
import socket
import time

import pytest

from pagetide_http.protocol import MAX_PIPELINED

# Of fake_core.py.
SLOW = 380
LONG = {"prompt": [SLOW, 300, 301], "max_tokens": 400, "ignore_eos": True}


def connect(server, rcvbuf=None):
    found = socket.socket()
    if rcvbuf:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    found.settimeout(20)
    found.connect(("127.0.0.1", server.port))
    return found


def wire(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def opened(server, path="/v1/completions", **body):
    found = connect(server)
    found.sendall(wire(path, {**LONG, **body}))
    return found


def read_events(found, count):
    data = b""
    while data.count(b"data:") < count:
        part = found.recv(4096)
        assert part, data
        data += part
    return data


def idle(server):
    """Nothing runs, waits or holds blocks."""
    names = ("requests_running", "requests_waiting", "kv_cache_utilization_ratio", "oldest_waiting_seconds")
    return not any(server.metric(f"pagetide_{name}") for name in names)


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({"stream": True}, id="a stream"),
        pytest.param({"stream": True, "n": 4}, id="a stream of four answers"),
        pytest.param({"stream": True, "prompt": [[SLOW, 1], [SLOW, 2], [SLOW, 3]]}, id="a stream of three prompts"),
        pytest.param({}, id="a whole answer"),
        pytest.param({"n": 4, "best_of": 6}, id="the best of six"),
    ],
)
def test_a_client_that_leaves_frees_everything(server, wait, request_fields):
    wait(lambda: idle(server))
    aborted = server.metric("pagetide_requests_total", finish_reason="abort")
    found = opened(server, **request_fields)
    if "stream" in request_fields:
        read_events(found, 2)
    else:
        wait(lambda: server.metric("pagetide_requests_running"))
    assert server.metric("pagetide_requests_running") >= 1
    found.close()
    assert wait(lambda: idle(server), 5) < 2
    prompts = request_fields.get("prompt")
    parts = len(prompts) if isinstance(prompts, list) else 1
    assert server.metric("pagetide_requests_total", finish_reason="abort") - aborted == parts


def test_a_client_that_leaves_while_it_waits_frees_its_place(launch, wait):
    with launch("--max-num-seqs=1") as server:
        first = opened(server, stream=True)
        read_events(first, 1)
        second = opened(server, stream=True)
        wait(lambda: server.metric("pagetide_requests_waiting") == 1)
        second.close()
        wait(lambda: server.metric("pagetide_requests_waiting") == 0, 2)
        assert server.metric("pagetide_requests_total", finish_reason="abort") == 1
        first.close()
        wait(lambda: idle(server))


def test_clients_that_leave_at_random_leave_nothing(server, wait):
    rng = random.Random(3)

    def one(i):
        found = opened(server, stream=i % 2 == 0)
        time.sleep(rng.random() * 0.5)
        found.close()

    with futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(48)))
    wait(lambda: idle(server), 10)
    assert server.complete(prompt="x", max_tokens=1)


def test_a_slow_reader_holds_up_nobody_and_loses_nothing(server):
    body = {"prompt": "The old", "max_tokens": 400, "stream": True, "return_token_ids": True, "logprobs": 5}
    found = connect(server, rcvbuf=2048)
    found.sendall(wire("/v1/completions", body))
    time.sleep(0.5)
    assert server.complete(prompt="x", max_tokens=2)
    data = b""
    while b"[DONE]" not in data:
        part = found.recv(1000)
        assert part
        data += part
    found.close()
    events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    (whole,) = server.complete(**{**body, "stream": False})["choices"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == "length"


def test_pipelined_requests_are_answered_in_order(server):
    found = connect(server)
    # More than are read while one is answered.
    prompts = ["The old", "In the market"] * MAX_PIPELINED
    found.sendall(b"".join(wire("/v1/completions", {"prompt": p, "max_tokens": 4}) for p in prompts))
    with found, found.makefile("rb") as file:
        texts = [whole_answer(file)[1]["choices"][0]["text"] for _ in prompts]
    want = [server.complete(prompt=p, max_tokens=4)["choices"][0]["text"] for p in prompts[:2]]
    assert texts == want * MAX_PIPELINED


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "whole answers"])
def test_a_client_that_leaves_with_requests_in_line_frees_everything(server, wait, streams):
    wait(lambda: idle(server))
    aborted = server.metric("pagetide_requests_total", finish_reason="abort")
    body = {"prompt": [300, 301], "max_tokens": 60, "stream": True, "ignore_eos": True}
    found = connect(server)
    found.sendall(wire("/v1/completions", {**LONG, "stream": streams}) * 3)
    wait(lambda: server.metric("pagetide_requests_running") == 1)
    others = [opened(server, **body) for _ in range(6)]
    begun = [read_events(other, 1) for other in others]
    found.close()
    for other, data in zip(others, begun, strict=True):
        data += read_events(other, 61 - data.count(b"data:"))
        assert data.count(b'"text"') == 60
        assert b'"error"' not in data
        other.close()
    assert wait(lambda: idle(server), 10) < 2
    assert server.metric("pagetide_requests_total", finish_reason="abort") - aborted == 1


def whole_answer(file):
    """Status line and JSON of the next of several answers."""
    status, length = file.readline().strip(), 0
    while line := file.readline().strip():
        name, _, value = line.partition(b": ")
        length = int(value) if name == b"content-length" else length
    return status, json.loads(file.read(length))


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("pieces", [1, 7], ids=["at once", "in seven pieces"])
def test_an_offer_of_another_protocol_is_passed_over(server, framing, pieces):
    """As Java's client makes it with its first request."""
    body = json.dumps({"prompt": "The old", "max_tokens": 4}).encode()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + offer
    if framing == "length":
        first = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        first = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    bare = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n"
    data = first + bare + wire("/v1/completions", {"prompt": "In the market", "max_tokens": 4})
    found = connect(server)
    for begin in range(0, len(data), len(data) // pieces + 1):
        found.sendall(data[begin : begin + len(data) // pieces + 1])
        time.sleep(0.01)
    with found, found.makefile("rb") as file:
        answers = [whole_answer(file) for _ in range(3)]
    assert [status for status, _ in answers] == [b"HTTP/1.1 200 OK"] * 3
    want = [server.complete(prompt=p, max_tokens=4)["choices"][0]["text"] for p in ("The old", "In the market")]
    assert [answers[i][1]["choices"][0]["text"] for i in (0, 2)] == want
    assert answers[1][1]["data"][0]["id"] == "tiny"


def test_what_is_no_http_gets_an_error_object(server):
    found = connect(server)
    found.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n")
    response = http.client.HTTPResponse(found)
    response.begin()
    assert (response.status, response.headers["content-type"]) == (400, "application/json")
    assert response.headers["x-request-id"]
    assert json.loads(response.read())["error"]["type"] == "invalid_request_error"
    assert found.recv(100) == b""
    found.close()


def test_rubbish_behind_a_request_ends_its_stream_without_an_answer_in_its_middle(server, wait):
    wait(lambda: idle(server))
    found = opened(server, stream=True)
    data = read_events(found, 2)
    found.sendall(b"\x00rubbish\r\n\r\n")
    while part := found.recv(4096):
        data += part
    found.close()
    assert data.count(b"HTTP/1.1") == 1
    wait(lambda: idle(server), 5)


def test_half_requests_disturb_nobody_and_are_closed_in_time(server, wait):
    data = wire("/v1/completions", {"prompt": "x", "max_tokens": 1})
    halves = [connect(server) for _ in range(20)]
    for number, found in enumerate(halves):
        found.sendall(data[:20] if number % 2 else data[:-5])
    assert server.complete(prompt="x", max_tokens=1)
    halves[0].sendall(data[-5:])
    assert halves[0].recv(100).startswith(b"HTTP/1.1 200")
    # --header-timeout-s=2, for half a head and for half a body.
    assert halves[1].recv(100).startswith(b"HTTP/1.1 408")
    assert halves[2].recv(100).startswith(b"HTTP/1.1 408")
    for found in halves:
        found.close()


def test_a_body_that_drips_is_given_up(launch):
    with launch("--header-timeout-s=0.2") as server:
        found = connect(server)
        data = wire("/v1/completions", {"prompt": "x" * 2000})
        found.sendall(data[:-1000])
        found.settimeout(0.1)
        answer, began = b"", time.monotonic()
        for byte in data[-1000:]:
            found.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                answer = found.recv(100)
                break
        found.close()
        assert answer.startswith(b"HTTP/1.1 408")
        assert 1.5 < time.monotonic() - began < 5


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="a TLS hello"),
        pytest.param(b"GET\r\n\r\n", id="half a request line"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", id="a negative length"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", id="a length that is no number"),
        pytest.param(b"A" * 100_000 + b"\r\n\r\n", id="a very long line"),
    ],
)
def test_rubbish_is_refused(server, junk):
    found = connect(server)
    try:
        found.sendall(junk)
        found.shutdown(socket.SHUT_WR)
        answer = found.recv(100)
        assert not answer or answer[9:10] == b"4"
    except ConnectionError:
        pass
    found.close()
    assert server.complete(prompt="x", max_tokens=1)


def test_five_hundred_clients_at_once(server, wait):
    wait(lambda: idle(server))
    body = {"prompt": "The old harbour", "max_tokens": 4, "stream": True}
    want = server.complete(prompt="The old harbour", max_tokens=4)["choices"][0]["text"]
    sockets = [connect(server) for _ in range(500)]
    for found in sockets:
        found.sendall(wire("/v1/completions", body))
    for found in sockets:
        data = b""
        while b"[DONE]" not in data:
            data += found.recv(65536)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        events = [json.loads(line[6:]) for line in rest.split(b"\n") if line.startswith(b"data: {")]
        assert "".join(e["choices"][0]["text"] for e in events) == want
        found.close()
    wait(lambda: idle(server))


@pytest.mark.parametrize("streams", [True, False], ids=["a stream", "a whole answer"])
def test_a_client_of_http_1_0_gets_a_body_without_chunks(server, streams):
    body = {"prompt": [300, 301], "max_tokens": 5, "ignore_eos": True, "stream": streams}
    with connect(server) as found:
        found.sendall(wire("/v1/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        data = b"".join(iter(lambda: found.recv(4096), b""))
    head, _, answer = data.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    assert b"transfer-encoding" not in head.lower()
    if streams:
        *events, done, end = answer.decode().split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]
    else:
        texts = [json.loads(answer)["choices"][0]["text"]]
    assert "".join(texts) == server.complete(**{**body, "stream": False})["choices"][0]["text"]
