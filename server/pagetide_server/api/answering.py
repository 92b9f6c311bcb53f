"""What the two routes that answer have in common: a request's way from its body to its response."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.types import Send

from pagetide_spec.names import HEADER_REQUEST_ID

from ..process.client import Prompt
from ..text.answer import Delta
from ..text.tokenizer import Tokenizer
from .context import Context, context_of
from .decoding import parse
from .generation import Generation, generating
from .prompts import Prompter
from .protocol import SamplingFields
from .streaming import WatchedResponse, event, send_events, send_json
from .usage import UsageWriter, note
from .validation import check_stream_options

Body = TypeVar("Body", bound=SamplingFields)


class Job(Protocol):
    """A checked request, and how its answers are written in the form of its route."""

    body: Any
    tokenizer: Tokenizer
    prompts: list[Prompt]
    id: str
    model: str

    def chunk(self, choices: list[Any]) -> Any:
        """One event of a stream."""

    def chunks(self, deltas: list[Delta], generation: Generation) -> list[Any]:
        """The events for new deltas; none while their text is held back."""

    def whole(self, answers: list[Delta], generation: Generation) -> Any:
        """The response to a request that is not streamed, but for its usage."""


async def answer(
    request: Request, kind: type[Body], prepare: Callable[[Context, Prompter, Body], Awaitable[Job]]
) -> WatchedResponse:
    """Read a body of `kind`, have `prepare` check it, and answer; nothing has reached the engine before.

    Raises:
        ApiError: the request is refused.
    """
    arrival = time.monotonic()
    context = context_of(request)
    prompter = context.serving()
    body = parse(await request.body(), kind)
    context.check_model(body.model)
    check_stream_options(body)
    if body.request_id is not None and HEADER_REQUEST_ID not in request.headers:
        request.state.request_id = body.request_id
    job = await prepare(context, prompter, body)
    return WatchedResponse(lambda send: _run(context, request, job, arrival, send))


async def _run(context: Context, request: Request, job: Job, arrival: float, send: Send) -> None:
    name = request.state.request_id
    with generating(context.engine, job.tokenizer, context.metrics, job.prompts, arrival, name) as generation:
        try:
            if job.body.stream:
                await send_events(send, _events(job, generation))
            else:
                whole = job.whole(await generation.finish(), generation)
                whole.usage = UsageWriter(None, generation).final()
                await send_json(send, whole)
        finally:
            note(request, generation, job.model, job.id)


async def _events(job: Job, generation: Generation) -> AsyncGenerator[bytes, None]:
    usage = UsageWriter(job.body.stream_options, generation)
    while deltas := await generation.next():
        if chunks := job.chunks(deltas, generation):
            for chunk in chunks:
                chunk.usage = usage.running()
            yield b"".join(map(event, chunks))
    if usage.wanted:
        chunk = job.chunk([])
        chunk.usage = usage.final()
        yield event(chunk)
