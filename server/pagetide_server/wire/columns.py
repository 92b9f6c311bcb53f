"""A step's plain tokens as columns: two lists of a step are written and read faster than a struct for each token. Pure.

Plain is an output that says nothing but one token of a request's first sequence, as nearly all do.
"""

from __future__ import annotations

from .messages import SequenceOutput, StepOutput


def move_to_columns(step: StepOutput) -> None:
    """Move as many outputs of a step as can be to its columns, which have been empty.

    The columns are read first, so an output that comes behind one of the same request that is not plain stays with it.
    """
    rest: list[SequenceOutput] = []
    kept: set[str] = set()
    for output in step.outputs:
        if is_plain(output) and output.request_id not in kept:
            step.plain_ids.append(output.request_id)
            step.plain_tokens.append(output.token_ids[0])
        else:
            rest.append(output)
            kept.add(output.request_id)
    step.outputs = rest


def is_plain(output: SequenceOutput) -> bool:
    """Whether `plain` makes the same output of its request and token."""
    return (
        len(output.token_ids) == 1
        and output.finish_reason is None
        and output.stop_token_id is None
        and output.prompt_logprobs is None
        and not (output.index or output.logprobs or output.scheduled or output.cached_tokens)
        and not (output.error or output.error_kind)
    )


def plain(request_id: str, token_id: int) -> SequenceOutput:
    """The output for which an entry of the columns stands."""
    return SequenceOutput(request_id=request_id, token_ids=[token_id])
