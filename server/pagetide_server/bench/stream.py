"""Reading a streamed answer: bytes with their time of arrival in, an `Outcome` filled."""

from __future__ import annotations

from typing import Any

import msgspec

from .figures import Outcome

DONE = b"[DONE]"
# Of an error's body; more is of no use in a report.
MAX_ERROR_BYTES = 4096


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_output(self) -> bool:
        if self.text:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
        )


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


# Typed: fields that are not asked for are skipped without becoming objects.
_decode = msgspec.json.Decoder(_Chunk).decode


class Reply:
    """The body of one answer in the making."""

    __slots__ = ("_any_at", "_ended_at", "_is_done", "_rest", "outcome", "status")

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.status = 0
        self._rest = b""
        self._any_at = self._ended_at = 0.0
        self._is_done = False

    def feed(self, data: bytes, now: float) -> None:
        """Bytes of the body that arrived `now`."""
        if self.status != 200:
            self._rest = (self._rest + data)[:MAX_ERROR_BYTES]
            return
        lines = (self._rest + data).split(b"\n")
        # The last piece is the begin of a line that is not complete.
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def close(self, now: float, problem: str = "") -> None:
        """The answer has ended, or broke off because of `problem`."""
        outcome = self.outcome
        outcome.ended = now
        if outcome.failure:
            return
        if self.status not in (0, 200):
            outcome.failure, outcome.detail = f"HTTP {self.status}", _message(self._rest)
        elif not self._is_done:
            # Some servers leave [DONE] out; one that gave a reason for the end has not broken off.
            outcome.failure = problem or ("" if self._ended_at else "broken off")
        if not outcome.failure:
            self._settle_times()

    def _event(self, data: bytes, now: float) -> None:
        if data == DONE:
            self._is_done = True
            return
        try:
            chunk = _decode(data)
        except msgspec.MsgspecError as error:
            self._fail("not an event", f"{error}: {data[:200]!r}")
            return
        if chunk.error is not None:
            self._fail("error event", str(chunk.error))
        if chunk.usage is not None:
            self._note(chunk.usage)
        for choice in chunk.choices:
            if choice.has_output():
                self.outcome.times.append(now)
            elif choice.finish_reason is None:
                self._any_at = self._any_at or now
            if choice.finish_reason is not None:
                self._ended_at = now

    def _note(self, usage: _Usage) -> None:
        outcome = self.outcome
        outcome.prompt_tokens, outcome.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _fail(self, failure: str, detail: str) -> None:
        if not self.outcome.failure:
            self.outcome.failure, self.outcome.detail = failure, detail

    def _settle_times(self) -> None:
        """Complete the times by tokens that had no text of their own: at the end, or in the whole answer."""
        outcome, times = self.outcome, self.outcome.times
        if (outcome.output_tokens or 0) > len(times) and self._ended_at and (not times or self._ended_at > times[-1]):
            times.append(self._ended_at)
        outcome.first = (times[0] if times else 0.0) or self._ended_at
        if not times and self._any_at:
            outcome.first = self._any_at


def _message(body: bytes) -> str:
    """The words of an OpenAI error object, or the begin of whatever else it is."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:200].decode("utf-8", "replace")
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)
