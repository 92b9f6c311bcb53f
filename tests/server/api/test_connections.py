"""What one connection may carry: pipelined requests, heads without end, bodies that break off."""

from __future__ import annotations

import concurrent.futures as futures
import json
import socket

import pytest

from pagetide_server.api.server import MAX_HEAD

# Of fake_core.py.
SLOW = 380
BODY = {"prompt": "The old", "max_tokens": 400, "stream": True, "ignore_eos": True}


def wire(**body):
    data = json.dumps({**BODY, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def read_until(found, mark, count=1):
    data = b""
    while data.count(mark) < count:
        part = found.recv(65536)
        assert part, data[-500:]
        data += part
    return data


def read_all(found):
    data = b""
    while part := found.recv(65536):
        data += part
    return data


def idle(server):
    return not any(server.metric(f"pagetide_{name}") for name in ("requests_running", "kv_cache_utilization_ratio"))


def texts_of(data):
    events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["text"] if "choices" in event else str(event) for event in events)


def test_clients_that_pipeline_and_leave_break_no_other_stream(server, wait):
    """Pieces of several streams are written together: one closed connection among them must not lose the others."""

    def leave(_):
        with connect(server) as found:
            found.sendall(wire(n=8) + wire())
            read_until(found, b"data:", 8)

    def read(_):
        with connect(server) as found:
            found.sendall(wire())
            return texts_of(read_until(found, b"[DONE]"))

    with futures.ThreadPoolExecutor(16) as pool:
        left = [pool.submit(leave, i) for i in range(24)]
        texts = set(pool.map(read, range(24)))
        assert [one.exception() for one in left] == [None] * 24
    assert texts == {server.complete(**{**BODY, "stream": False})["choices"][0]["text"]}
    assert wait(lambda: idle(server), 5) < 2


def test_a_pipelining_client_that_leaves_is_no_error_of_the_server(launch, wait):
    with launch() as server:
        with connect(server) as found:
            found.sendall(wire(prompt=[SLOW, 300]) + wire())
            read_until(found, b"data:", 2)
        assert wait(lambda: idle(server), 5) < 2
        assert server.metric("pagetide_requests_total", finish_reason="abort") == 1
        assert "Traceback" not in server.log.read_text()


def test_a_head_without_end_is_refused(server):
    begun = b"GET /livez HTTP/1.1\r\nX-Long: "
    with connect(server) as found:
        # Not a byte more: what is left unread would reset the connection, and the answer be lost with it.
        found.sendall(begun + b"a" * (MAX_HEAD + 1 - len(begun)))
        answer = read_all(found)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"larger than %d bytes" % MAX_HEAD in answer


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"zz\r\n{}", id="at its first chunk"),
        pytest.param(b"2\r\n{}\r\nzz\r\n", id="at a later chunk"),
    ],
)
def test_a_body_that_stops_being_http_is_answered(server, body):
    with connect(server) as found:
        found.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        answer = read_all(found)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"the request is no valid HTTP" in answer
