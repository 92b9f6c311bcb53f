"""The three requests that the gateway makes of an API server: list, watch, patch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from pagetide_spec.calls import describe_failed_call

from .kube_config import KubeConfig

TIMEOUT_S = 30.0
# So long lasts a watch. Then everything is listed again, which bounds the effect of a watch that failed silently.
WATCH_S = 60
_MARGIN_S = 10.0
_PAGE = 500


class KubeError(Exception):
    """The API server refused (`code` is the status), or could not be reached (0)."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class KubeApi:
    """Must be closed."""

    def __init__(self, config: KubeConfig) -> None:
        self._config = config
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=config.tls or False, limit=0),
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def list(self, path: str, query: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
        """All objects, and the version that a watch goes on from."""
        items: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            answer = await self._request("GET", path, {**query, **more, "limit": str(_PAGE)})
            items += answer.get("items") or []
            metadata = answer["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            more = {"continue": metadata["continue"]}

    async def patch(self, path: str, body: Any) -> None:
        """Merge `body` into an object."""
        await self._request("PATCH", path, {}, body)

    async def watch(self, path: str, query: dict[str, str], version: str) -> AsyncIterator[dict[str, Any]]:
        """Events since `version`, for WATCH_S seconds at most."""
        options = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        query = {**query, **options, "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=WATCH_S + _MARGIN_S, sock_connect=TIMEOUT_S)
        try:
            async with self._session.get(
                self._config.server + path, params=query, headers=await self._headers(), timeout=timeout
            ) as response:
                await _check(response)
                async for line in _lines(response.content):
                    yield msgspec.json.decode(line, type=dict[str, Any])
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise KubeError(0, describe_failed_call(error)) from error

    async def _request(self, method: str, path: str, query: dict[str, str], body: Any = None) -> dict[str, Any]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._session.request(
                    method, self._config.server + path, params=query, data=data, headers=await self._headers()
                ) as response,
            ):
                await _check(response)
                return msgspec.json.decode(await response.read(), type=dict[str, Any])
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise KubeError(0, describe_failed_call(error)) from error

    async def _headers(self) -> dict[str, str]:
        # In a thread: a kubeconfig may name a program that logs in.
        token = await asyncio.to_thread(self._config.token)
        identity = {"authorization": f"Bearer {token}"} if token else {}
        return {"accept": "application/json", "content-type": "application/merge-patch+json", **identity}


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = (await response.read())[:2000]
        try:
            message = msgspec.json.decode(text, type=dict[str, Any]).get("message") or ""
        except msgspec.DecodeError:
            message = text.decode("utf-8", "replace")
        raise KubeError(response.status, f"status {response.status}: {message}")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, however long: an object may be larger than a reader's buffer."""
    held: list[bytes] = []
    while piece := await content.readany():
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield b"".join((*held, line))
            held = []
        if rest:
            held.append(rest)
