"""Outputs on their way between the processes: nothing is lost, and each request's stay in order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide_server.wire.columns import is_plain, move_to_columns, plain
from pagetide_server.wire.messages import EngineStats, SequenceOutput, StepOutput, TokenLogprobs

# Each field of an output with a value other than its default.
TOLD = {
    "index": 1, "token_ids": [5, 6], "logprobs": [TokenLogprobs(5, -0.5, 1)], "finish_reason": "length",
    "stop_token_id": 5, "scheduled": 1.5, "cached_tokens": 3, "prompt_logprobs": [None], "error": "why",
    "error_kind": "engine",
}  # fmt: skip


def output(request_id: str, **fields) -> SequenceOutput:
    return SequenceOutput(request_id=request_id, **{"token_ids": [5], **fields})


def test_a_token_alone_is_plain():
    assert is_plain(output("r"))
    assert plain("r", 5) == output("r")


def test_every_field_of_an_output_is_looked_at():
    assert {"request_id", *TOLD} == set(SequenceOutput.__struct_fields__)


@pytest.mark.parametrize("field", sorted(TOLD))
def test_an_output_that_tells_more_is_not_plain(field):
    assert not is_plain(output("r", **{field: TOLD[field]}))


def test_an_output_without_a_token_is_not_plain():
    assert not is_plain(output("r", token_ids=[]))


few_outputs = st.lists(
    st.builds(
        lambda request, token, told: output(request, **{"token_ids": [token], **told}),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 9),
        st.sampled_from([{}, {}, {"scheduled": 1.0}, {"finish_reason": "stop"}, {"index": 1}]),
    ),
    max_size=8,
)


@given(few_outputs)
def test_each_request_gets_the_same_outputs_in_the_same_order(outputs):
    step = StepOutput(outputs=list(outputs), stats=EngineStats(), time=1.0)
    move_to_columns(step)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=StepOutput)
    found = [*map(plain, sent.plain_ids, sent.plain_tokens), *sent.outputs]
    for request in "abc":
        assert [o for o in found if o.request_id == request] == [o for o in outputs if o.request_id == request]
