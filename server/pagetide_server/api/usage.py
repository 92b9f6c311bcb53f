"""Token counts as clients see them."""

from __future__ import annotations

from fastapi import Request
from msgspec import UNSET, UnsetType

from .generation import Generation
from .protocol import StreamOptions
from .responses import PromptTokensDetails, Usage


class UsageWriter:
    """`usage` of one request, as its stream options want it."""

    __slots__ = ("_generation", "is_continuous", "wanted")

    def __init__(self, options: StreamOptions | None, generation: Generation) -> None:
        self._generation = generation
        self.wanted = bool(options and options.include_usage)
        self.is_continuous = bool(options and options.continuous_usage_stats and self.wanted)

    def running(self) -> Usage | UnsetType:
        """For a chunk that carries text: nothing, unless asked for."""
        return self.final() if self.is_continuous else UNSET

    def final(self) -> Usage:
        """The counts so far."""
        prompt, completion = self._generation.prompt_tokens, self._generation.completion_tokens
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(self._generation.cached_tokens))


def note(request: Request, generation: Generation, model: str, response_id: str) -> None:
    """Leave what the access line and the trace report of a request with it."""
    request.state.generation, request.state.model, request.state.response_id = generation, model, response_id
    records = [run.record for run in generation.runs]
    first = [r.first_at for r in records if r.first_at]
    scheduled = [r.scheduled for r in records if r.scheduled]
    request.state.figures = {
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "generated_tokens": generation.completion_tokens,
        "arrival": records[0].arrival,
        "scheduled": min(scheduled) if scheduled else None,
        "first_token": min(first) if first else None,
    }
