"""Stands in for a server in a pod where answers matter: streams a number of events, one in each tenth of a second.

Eight requests at once are what it has room for, and it reports its load. When asked to end, it finishes its streams.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--port="))
MODEL = os.environ["MODEL"]
METRICS = """pagetide_kv_capacity_tokens{{model_name="m"}} 4096
pagetide_max_num_seqs{{model_name="m"}} 8
pagetide_requests_running{{model_name="m"}} {running}
pagetide_requests_waiting{{model_name="m"}} {waiting}
"""
count = threading.Lock()
streams = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/metrics":
            self._send(METRICS.format(running=min(8, streams), waiting=max(0, streams - 8)), "text/plain")
        else:
            self._send(json.dumps({"data": [{"id": MODEL}]} if self.path == "/v1/models" else {}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("stream"):
            counted(1)
            try:
                self._stream(body["max_tokens"])
            finally:
                counted(-1)
        else:
            self._send(json.dumps({"asked": body}))

    def _stream(self, length):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(length):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
            time.sleep(0.1)
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, text, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def counted(change):
    global streams
    with count:
        streams += change


ThreadingHTTPServer.request_queue_size = 128
server = ThreadingHTTPServer(("0.0.0.0", PORT), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(poll_interval=0.05)
server.server_close()
while streams:
    time.sleep(0.05)
