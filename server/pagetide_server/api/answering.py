"""What the two routes that answer have in common: a request's way from its body to its response."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.types import Send

from pagetide_http.fast_path import FastPath
from pagetide_spec.names import HEADER_REQUEST_ID

from ..process.client import Prompt
from ..text.answer import Delta
from ..text.tokenizer import Tokenizer
from ..wire.messages import SequenceOutput
from .context import Context, context_of
from .decoding import parse
from .generation import Generation, generating
from .prompts import Prompter
from .protocol import SamplingFields
from .streaming import WatchedResponse, event, fast_path, send_events, send_json
from .token_writer import TokenWriter
from .usage import UsageWriter, note
from .validation import check_stream_options

Body = TypeVar("Body", bound=SamplingFields)


class Job(Protocol):
    """A checked request, and how its answers are written in the form of its route."""

    body: Any
    tokenizer: Tokenizer
    prompts: list[Prompt]
    structure_field: str
    id: str
    model: str

    def chunk(self, choices: list[Any]) -> Any:
        """One event of a stream."""

    def chunks(self, deltas: list[Delta], generation: Generation) -> list[Any]:
        """The events for new deltas; none while their text is held back."""

    def differs_by_text(self) -> bool:
        """Whether events of one answer's plain tokens, but the first, are equal but for their text."""

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
    answers = generating(
        context.engine, job.tokenizer, context.metrics, job.prompts, job.structure_field, arrival, name
    )
    with answers as generation:
        try:
            if job.body.stream:
                await send_events(send, _Events(job, generation), fast_path(request.scope))
            else:
                whole = job.whole(await generation.finish(), generation)
                whole.usage = UsageWriter(None, generation).final()
                await send_json(send, whole)
        finally:
            note(request, generation, job.model, job.id)


class _Events:
    """The events of a stream."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._job, self._generation = job, generation
        self._usage = UsageWriter(job.body.stream_options, generation)
        self._ended = False

    async def next(self) -> bytes:
        """What the next deltas make; nothing at the end.

        Raises:
            ApiError, EngineDead: as `Generation.next`.
        """
        while deltas := await self._generation.next():
            if part := self._part(deltas):
                return part
        if self._ended or not self._usage.wanted:
            return b""
        self._ended = True
        chunk = self._job.chunk([])
        chunk.usage = self._usage.final()
        return event(chunk)

    def hurry(self, way: FastPath) -> None:
        """Write the events of plain tokens as they come; ends and errors go through `next`."""

        def tap(output: SequenceOutput) -> bool:
            if output.finish_reason is not None or not way.is_free():
                return False
            delta = self._generation.absorb_plain(output)
            if delta is not None and (part := self._part([delta])):
                way.write(part)
            return True

        self._generation.tap(tap, self._token_tap(way))

    def _token_tap(self, way: FastPath) -> Callable[[int], bool] | None:
        """What writes the events of plain tokens quicker still, where they differ by nothing but their text."""
        answer = self._generation.sole_answer()
        if answer is None or not answer.takes_tokens or self._usage.is_continuous or not self._job.differs_by_text():
            return None
        return TokenWriter(way, answer, lambda text: self._part([Delta(answer.index, text, [], [])])).write

    def _part(self, deltas: list[Delta]) -> bytes:
        chunks = self._job.chunks(deltas, self._generation)
        for chunk in chunks:
            chunk.usage = self._usage.running()
        return b"".join(map(event, chunks))
