"""Answers of fake replicas that fail."""

from __future__ import annotations

from aiohttp import web


async def begin_stream(request: web.Request, first: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(first)
    return response


async def die_at_once(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    return web.Response()


async def die_in_small_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "100"})
    await response.prepare(request)
    await response.write(b'{"half": ')
    request.transport.abort()
    return response


async def answer_503(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "draining"}}, status=503)


async def answer_429(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "full"}}, status=429, headers={"retry-after": "7"})
