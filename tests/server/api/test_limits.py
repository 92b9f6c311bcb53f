"""What is refused though it is well-formed: without a key, too large, too many, too late."""

from __future__ import annotations

import httpx
import pytest

from pagetide_server.api.errors import refusal
from pagetide_server.wire.messages import SequenceOutput

from .asking import error_of

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


def test_a_prompt_over_the_window_says_both_numbers(server):
    error_of(server.post(COMPLETION, prompt=[300] * 600), 400, "512", "600")
    error_of(server.post(COMPLETION, prompt=[[300], [300] * 600]), 400, "512", "600")
    error_of(server.post(COMPLETION, prompt="sea " * 1000), 400, "512")
    error_of(server.post(CHAT, messages=[{"role": "user", "content": "sea " * 1000}]), 400, "512")


def test_a_batch_has_a_limit(server):
    error_of(server.post(COMPLETION, prompt=["x"] * 1025), 400, "prompt")
    error_of(server.post(COMPLETION, prompt=["x"] * 100, n=100), 400, "n")


def test_a_huge_prompt_is_refused_before_it_is_tokenized(server):
    answer = server.post(COMPLETION, prompt="sea and sand " * 320_000)
    error_of(answer, 400, "512")
    assert answer.elapsed.total_seconds() < 5


@pytest.mark.parametrize(
    ("wait", "told"), [(0, "1"), (0.2, "1"), (3.4, "4"), (1e6, "60")], ids=["no time", "a moment", "seconds", "days"]
)
def test_retry_after_is_what_requests_wait_now(wait, told):
    output = SequenceOutput(request_id="r", finish_reason="error", error="full", error_kind="queue_full")
    assert refusal(output, wait, "").headers == {"retry-after": told}


def test_keys_guard_everything_but_health_and_metrics(launch, tmp_path):
    keys = tmp_path / "keys"
    # As an editor on Windows writes it.
    keys.write_bytes("first-in-file\r\n# operators\r\nfrom-file\r\n\r\nschlüssel\r\nvoilà".encode("utf-8-sig"))
    with launch("--api-key=first,second", f"--api-key-file={keys}") as server:
        for header, told in (
            ({}, "An API key is needed: Authorization: Bearer KEY"),
            ({"authorization": "Bearer wrong"}, "The API key is not valid"),
            ({"authorization": "first"}, "An API key is needed: Authorization: Bearer KEY"),
            ({"authorization": "Basic first"}, "An API key is needed: Authorization: Bearer KEY"),
        ):
            for path in ("/v1/models", "/version", "/openapi.json", "/nothing"):
                error = error_of(httpx.get(server.url + path, headers=header), 401)
                assert (error["message"], error["code"]) == (told, "invalid_api_key")
        for key in ("first", "second", "first-in-file", "from-file", "schlüssel", "voilà"):
            header = {"authorization": f"Bearer {key}".encode()}
            assert httpx.get(server.url + "/v1/models", headers=header).status_code == 200
        assert [server.status(p) for p in ("/livez", "/readyz", "/health", "/metrics")] == [200] * 4


def test_a_body_over_the_limit_is_413(launch):
    with launch("--max-body-mib=0.001") as server:
        error_of(server.post(COMPLETION, prompt="x" * 2000), 413, "--max-body-mib")

        def chunks():
            yield b'{"prompt": "'
            yield b"x" * 2000

        error_of(server.http.post(COMPLETION, content=chunks()), 413)
        assert server.complete(prompt="x", max_tokens=1)


def test_a_full_queue_is_429_with_a_time_to_wait(launch):
    with launch("--max-queue-len=1", "--max-num-seqs=1", FAKE_STEP_S="0.05") as server:
        import concurrent.futures as futures

        with futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: server.post(COMPLETION, prompt="x", max_tokens=8), range(8)))
        refused = [a for a in answers if a.status_code != 200]
        assert 0 < len(refused) < 8
        for answer in refused:
            error_of(answer, 429)
            assert int(answer.headers["retry-after"]) >= 1
