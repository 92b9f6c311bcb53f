"""What several files of tests ask a server, or of its answers."""

from __future__ import annotations

import httpx


def error_of(answer, status, *named):
    """The error object, after checks of its form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for name in named:
        assert name in error["message"] or name == error["param"], error
    return error


def stream(server, **body):
    """A stream's text, read to its end; an error that cuts the connection is part of it."""
    text = ""
    request = {"prompt": "The old", "max_tokens": 40, "stream": True, **body}
    with httpx.stream("POST", server.url + "/v1/completions", json=request, timeout=30, trust_env=False) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_text():
            text += part
    return text


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
