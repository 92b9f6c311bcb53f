"""A headless Chromium over its debugging protocol, started once for all tests that look at a page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
START_S = 60
SIZE = {"width": 1000, "height": 900}


class Browser:
    """One page of a headless Chromium, driven over its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._count = socket, 0
        self.complaints: list[str] = []
        self.asked_for: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=30)
            if message.get("id") == self._count:
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(str(event["params"]["entry"]))

        if event.get("method") == "Network.requestWillBeSent":
            self.asked_for.append(event["params"]["request"]["url"])

    async def open(self, url: str) -> None:
        for domain in ("Runtime", "Log", "Page", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def read(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 20.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := await self.read(expression)):  # noqa: ASYNC110 - the page has no event for us
                await asyncio.sleep(0.05)
        return found

    async def look(self, width: int, scheme: str) -> None:
        """Be so wide, and light or dark."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@contextlib.contextmanager
def running_chromium(folder: Path) -> Iterator[str]:
    """The address of a browser whose profile is in this folder."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [str(CHROMIUM), *flags, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        written, latest = folder / "DevToolsActivePort", time.monotonic() + START_S
        while not (port := port_in(written)):
            assert process.poll() is None, "the browser has ended"
            assert time.monotonic() < latest, f"the browser did not start within {START_S} s"
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        # Debian's command is a script around the browser: killed alone, it would leave that behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def port_in(path: Path) -> str:
    """The port that the browser has written down; empty until it has."""
    return next(iter(path.read_text().split()), "") if path.exists() else ""


@contextlib.asynccontextmanager
async def fresh_page(address: str) -> AsyncIterator[Browser]:
    """An empty page of its own, with nothing stored from before; it is closed at the end."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/json/version") as reply:
            url = (await reply.json(content_type=None))["webSocketDebuggerUrl"]
        async with session.ws_connect(url, max_msg_size=1 << 25) as socket:
            whole = Browser(socket)
            context = await whole.call("Target.createBrowserContext")
            page = await whole.call("Target.createTarget", url="about:blank", **SIZE, **context)
            url = f"ws://{address}/devtools/page/{page['targetId']}"
            async with session.ws_connect(url, max_msg_size=1 << 25) as own:
                yield Browser(own)
            await whole.call("Target.disposeBrowserContext", **context)
