"""A client in a pod: asks a service for completions until it is asked to stop, and says how that went.

Prints one JSON line a request: the seconds it took, and what was wrong, if anything.
"""

import http.client
import json
import sys
import time
import urllib.request

url, pause = sys.argv[1], float(sys.argv[2])
body = json.dumps({"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}).encode()
while True:
    began, problem, text = time.monotonic(), None, None
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            text = json.load(reply)["choices"][0]["text"]
    except (OSError, http.client.HTTPException) as error:
        problem = repr(error)
    print(json.dumps({"seconds": round(time.monotonic() - began, 3), "problem": problem, "text": text}), flush=True)
    time.sleep(pause)
