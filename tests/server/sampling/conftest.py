"""Sequences in the middle of their answers."""

from collections.abc import Callable

import pytest

from pagetide_server.engine.sequence import Sequence
from pagetide_server.wire.messages import AddRequest, SamplingParams

MakeSequence = Callable[..., Sequence]


@pytest.fixture
def make() -> MakeSequence:
    """make(prompt, answer, order=..., index=..., **params) gives a sequence; each has its own place in the arrivals."""
    arrivals = iter(range(1_000_000))

    def sequence(
        prompt: list[int] | None = None,
        answer: list[int] | None = None,
        order: int | None = None,
        index: int = 0,
        **params,
    ) -> Sequence:
        request = AddRequest(
            request_id="r", prompt_token_ids=prompt or [0], params=SamplingParams(**params), arrival=0.0
        )
        result = Sequence(request, next(arrivals) if order is None else order, index)
        result.tokens += answer or []
        return result

    return sequence
