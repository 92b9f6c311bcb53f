"""The faked engine of server_overhead.py: a core that gives every sequence one token a step, and its tokenizer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import AbortRequest, AddRequest, EngineStats, Ready, SequenceOutput, StepOutput
from pagetide_spec.config import EngineConfig

VOCAB = 256
# In the sorted alphabet of bytes, "!" comes first.
LETTER_A = ord("a") - ord("!")
MAX_LEN = 100_000
# A step's tokens are made up this long before they are due.
PREPARATION_SECONDS = 0.002


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock, if that is still to come."""
    time.sleep(max(0.0, moment - time.monotonic()))


class PacedCore:
    """Gives each sequence one token every `step_seconds`; notes when. Prompts are one token: the stream's number."""

    def __init__(self, step_seconds: float, streams: int, notes: Path) -> None:
        self.ready = Ready(
            max_model_len=MAX_LEN, vocab_size=VOCAB, eos_token_ids=[], max_num_seqs=4096, max_num_batched_tokens=4096,
            block_size=16, num_blocks=1, num_swap_blocks=0, dtype="none", device="none", attention="none",
        )  # fmt: skip
        self._step_seconds, self._streams, self._notes = step_seconds, streams, notes
        self._left: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        # Of each step: when, and the numbers of the streams that got a token.
        self._steps: list[tuple[float, list[int]]] = []
        self._next = 0.0

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        self._left[request.request_id] = request.params.max_tokens or 16
        self._numbers[request.request_id] = request.prompt_token_ids[0]
        return []

    def abort(self, request: AbortRequest) -> list[SequenceOutput]:
        self._left.pop(request.request_id, None)
        return []

    def has_work(self) -> bool:
        # All together: the first stream waits for the last one.
        return bool(self._left) and (len(self._numbers) >= self._streams or bool(self._steps))

    def is_waiting(self) -> bool:
        return bool(self._left)

    def step(self) -> StepOutput:
        # Shortly before it is due, not while the client, which may share this core, reads the step before.
        sleep_until(self._next - PREPARATION_SECONDS)
        made = list(self._left)
        outputs = [self._token(request_id) for request_id in made]
        sleep_until(self._next)
        stats, numbers = self.stats(), [self._numbers[request_id] for request_id in made]
        now = time.monotonic()
        self._next = now + self._step_seconds
        self._steps.append((now, numbers))
        return StepOutput(outputs=outputs, stats=stats, time=now, tokens=len(outputs), sequences=len(outputs))

    def _token(self, request_id: str) -> SequenceOutput:
        left = self._left[request_id] = self._left[request_id] - 1
        if left:
            return SequenceOutput(request_id=request_id, token_ids=[LETTER_A + left % 26])
        del self._left[request_id]
        return SequenceOutput(request_id=request_id, token_ids=[LETTER_A], finish_reason="length")

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._left))

    def close(self) -> None:
        times: dict[int, list[float]] = {}
        for moment, numbers in self._steps:
            for number in numbers:
                times.setdefault(number, []).append(moment)
        self._notes.write_text(json.dumps(times))


def create(config: EngineConfig, progress: Callable[[str, float], None]) -> PacedCore:
    """The engine's core, as the environment sets it."""
    env = os.environ
    if "BENCH_OTHER_CORES" in env:
        os.sched_setaffinity(0, map(int, env["BENCH_OTHER_CORES"].split(",")))
    return PacedCore(float(env["BENCH_STEP_S"]), int(env["BENCH_STREAMS"]), Path(env["BENCH_NOTES"]))


def byte_tokenizer(config: EngineConfig) -> Tokenizer:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})
