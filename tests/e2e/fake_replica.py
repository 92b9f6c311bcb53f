"""A stand-in for `pagetide serve`: answers as one, loads nothing.

Called as fake_replica.py PORT MODEL BEHAVIOUR [HOST].
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, MODEL, BEHAVIOUR = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HOST = sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1"
draining = threading.Event()
PLACES = 2
lock = threading.Lock()
# Of `stepwise`: how many pieces of a stream may be followed by the next. Each prompt `next` is one.
steps = threading.Semaphore(0)
STEP_S = 20
counts = {"open": 0, "done": 0}


def metrics() -> str:
    """A server with two places; what is beyond counts as waiting."""
    running, waiting = min(counts["open"], PLACES), max(0, counts["open"] - PLACES)
    return "".join(
        f'pagetide_{name}{{model_name="{MODEL}"}} {value}\n'
        for name, value in (
            ("requests_running", running), ("requests_waiting", waiting), ("max_num_seqs", PLACES),
            ("batch_utilization_ratio", running / PLACES), ("kv_capacity_tokens", 1000),
            ("prompt_tokens_total", 10 * counts["done"]), ("prefills_total", counts["done"]),
        )
    )  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Health, the model's card, completions whole or streamed; the prompt `die` ends the process."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, metrics(), "text/plain")
        elif self.path == "/readyz":
            self._send(503 if draining.is_set() else 200, {"status": "draining" if draining.is_set() else "ready"})
        else:
            self._send(200, {"data": [{"id": MODEL, "object": "model", "max_model_len": 64}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if request["prompt"] == "die":
            os._exit(3)
        if request["prompt"] == "next":
            steps.release()
        if BEHAVIOUR == "breaks":
            self._break(is_begun=bool(request.get("stream")))
            return
        with lock:
            counts["open"] += 1
        try:
            if request.get("stream"):
                self._stream(int(request["max_tokens"]))
            else:
                self._send(200, {"choices": [{"text": request["prompt"][::-1]}], "pid": os.getpid()})
        finally:
            with lock:
                counts["open"] -= 1
                counts["done"] += 1

    def _break(self, *, is_begun: bool) -> None:
        """Hang up, before the first byte or within a stream."""
        if is_begun:
            self._begin_stream()
            self.wfile.write(b"a\r\ndata: {}\n\n\r\n")
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _stream(self, count: int) -> None:
        self._begin_stream()
        chunks = (b'data: {"choices": [{"index": 0, "text": "%d "}]}\n\n' % i for i in range(count))
        for event in chunks:
            self._write_chunk(event)
            if BEHAVIOUR != "stepwise":
                time.sleep(0.05)
            elif not steps.acquire(timeout=STEP_S):
                raise TimeoutError("nobody asked for the next piece")
        self._write_chunk(b"data: [DONE]\n\n")
        self._write_chunk(b"")

    def _write_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def _send(self, status: int, answer: object, kind: str = "application/json") -> None:
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keep the log for what the tests look for."""


def main() -> None:
    if BEHAVIOUR == "crash":
        sys.exit("RuntimeError: out of luck")
    if BEHAVIOUR == "wrong":
        print("pagetide serve: --max-model-len: 9: the model has only 8", file=sys.stderr)
        sys.exit(2)
    if BEHAVIOUR == "nested":
        # A child that nobody tells to end, as an engine process whose server died.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = ThreadingHTTPServer((HOST, PORT), Handler)
    server.daemon_threads = True
    server.socket.listen(128)

    def on_term(number: int, frame: object) -> None:
        draining.set()
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVIOUR == "stubborn" else on_term)
    server.serve_forever(poll_interval=0.05)
    while counts["open"]:  # requests under way; idle connections are let go
        time.sleep(0.01)


main()
