"""Stands in for a server in a pod: the HTTP addresses that the operator's probes ask, and the faults a test asks for.

A POST of {"running": 3, "waiting": 1} to /load is what /metrics reports from then on. Faults come as environment
variables: FAKE_EXIT (end at once with this code and a last line of log); FAKE_FETCH (the same, but only where the model
is fetched).
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--download-only" in sys.argv:
    if code := int(os.environ.get("FAKE_FETCH", "0")):
        print("no such model", file=sys.stderr, flush=True)
        sys.exit(code)
    with open(f"{os.environ['XDG_CACHE_HOME']}/fetched-{sys.argv[1].replace('/', '--')}", "w") as out:
        out.write(os.environ.get("HF_TOKEN", ""))
    sys.exit(0)
PORT = next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--port="))


METRICS = """pagetide_kv_capacity_tokens{{model_name="m"}} 4096
pagetide_max_num_seqs{{model_name="m"}} 8
pagetide_requests_running{{model_name="m"}} {running}
pagetide_requests_waiting{{model_name="m"}} {waiting}
"""
load = {"running": 0, "waiting": 0}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched = sorted(os.listdir(os.environ["XDG_CACHE_HOME"]))
        body = json.dumps({"pod": os.uname().nodename, "args": sys.argv[1:], "fetched": fetched}).encode()
        if self.path == "/metrics":
            body = METRICS.format(**load).encode()
        self._answer(body)

    def do_POST(self):
        load.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"")

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if code := int(os.environ.get("FAKE_EXIT", "0")):
    print("loading model\nValueError: no such model", file=sys.stderr, flush=True)
    sys.exit(code)
server = ThreadingHTTPServer(("0.0.0.0", PORT), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(poll_interval=0.05)
