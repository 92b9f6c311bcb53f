"""An engine core without a model: token streams that follow from the prompt alone, and faults on request.

It runs in the real engine process (`core="fake_core:create"`). A request's `cache_salt` asks for a fault, see `FAULTS`.
Environment: FAKE_STEP_S (duration of a step), FAKE_LOAD_S, FAKE_LOAD_ERROR (setting | model | crash).
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable

from pagetide_server.engine.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    Ready,
    SequenceOutput,
    StepOutput,
    TokenLogprobs,
)
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

EOS = 1
VOCAB = 390
FIRST_WORD = 262
BLOCK = 16
NUM_BLOCKS = 4096


def script(prompt: list[int], index: int, length: int) -> list[int]:
    """The first tokens of an answer: the same for the same prompt and index."""
    seed = ",".join(map(str, prompt)) + f"/{index}"
    digest = hashlib.shake_256(seed.encode()).digest(2 * length)
    span = VOCAB - FIRST_WORD
    return [FIRST_WORD + int.from_bytes(digest[2 * i : 2 * i + 2], "big") % span for i in range(length)]


class _Sequence:
    def __init__(self, request: AddRequest, index: int) -> None:
        self.request, self.index = request, index
        self.limit = 16 if request.params.max_tokens is None else request.params.max_tokens
        self.script = _script_of(request, index, self.limit)
        self.made = 0


def _script_of(request: AddRequest, index: int, length: int) -> list[int]:
    """What a sequence says: what the request dictates (`say:ids`, a bias), or what follows from its prompt."""
    params = request.params
    if request.cache_salt.startswith("say:"):
        said = [int(i) for i in request.cache_salt.removeprefix("say:").split(",")]
        return [*said, *[EOS] * length][:length]
    forced = [token for token, bias in params.logit_bias.items() if bias >= 100]
    greedy = params.temperature == 0 or params.top_k == 1
    return forced[:1] * length or script(request.prompt_token_ids, 0 if greedy else index, length)


class FakeCore:
    """Admits requests up to `max_num_seqs` sequences, and gives each one token a step."""

    def __init__(self, config: EngineConfig) -> None:
        self.ready = Ready(
            max_model_len=config.max_model_len or 512, vocab_size=VOCAB, eos_token_ids=[EOS],
            max_num_seqs=config.max_num_seqs or 64, max_num_batched_tokens=2048, block_size=BLOCK,
            num_blocks=NUM_BLOCKS, num_swap_blocks=0, dtype="float32", device="fake", attention="none",
        )  # fmt: skip
        self._max_queue = config.max_queue_len
        self._waiting: list[AddRequest] = []
        self._running: list[_Sequence] = []
        self._cached: set[tuple[int, ...]] = set()
        self._totals = EngineStats()
        self._step_seconds = float(os.environ.get("FAKE_STEP_S", "0.002"))

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        fault = request.cache_salt
        if fault == "refuse":
            return [_error(request, "the grammar is wrong", "invalid")]
        if len(self._waiting) >= self._max_queue:
            return [_error(request, "the queue is full", "queue_full")]
        self._waiting.append(request)
        return []

    def abort(self, request: AbortRequest) -> list[SequenceOutput]:
        def hit(r: AddRequest, index: int | None) -> bool:
            return r.request_id == request.request_id and request.index in (None, index)

        ended = [s for s in self._running if hit(s.request, s.index)]
        self._running = [s for s in self._running if s not in ended]
        self._waiting = [r for r in self._waiting if not hit(r, None)]
        return [
            SequenceOutput(request_id=s.request.request_id, index=s.index, finish_reason=request.reason) for s in ended
        ]

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def is_waiting(self) -> bool:
        return False

    def step(self) -> StepOutput:
        began = time.monotonic()
        admitted = self._admit()
        for sequence in self._running:
            _act(sequence)
        time.sleep(self._step_seconds)
        outputs = [self._advance(s, s.request.request_id in admitted, began) for s in self._running]
        count = len(self._running)
        self._running = [s for s, o in zip(self._running, outputs, strict=True) if o.finish_reason is None]
        self._totals.steps += 1
        now = time.monotonic()
        return StepOutput(
            outputs=outputs, stats=self.stats(), time=now, seconds=now - began, tokens=count, sequences=count
        )

    def stats(self) -> EngineStats:
        stats = self._totals
        stats.running, stats.waiting = len(self._running), len(self._waiting)
        stats.oldest_arrival = min((r.arrival for r in self._waiting), default=None)
        stats.admissible_seqs = self.ready.max_num_seqs
        stats.blocks_used = sum(1 + len(s.request.prompt_token_ids) // BLOCK for s in self._running)
        stats.blocks_free = NUM_BLOCKS - stats.blocks_used
        return stats

    def _admit(self) -> set[str]:
        admitted = set()
        while self._waiting:
            request = self._waiting[0]
            count = request.params.best_of or request.params.n
            if self._running and len(self._running) + count > self.ready.max_num_seqs:
                break
            self._waiting.pop(0)
            self._running += [_Sequence(request, i) for i in range(count)]
            admitted.add(request.request_id)
        return admitted

    def _advance(self, sequence: _Sequence, first: bool, scheduled: float) -> SequenceOutput:
        request, params = sequence.request, sequence.request.params
        # Without a token only the prompt is scored.
        token = sequence.script[sequence.made] if sequence.limit else None
        sequence.made += token is not None
        tokens = [] if token is None else [token]
        output = SequenceOutput(request_id=request.request_id, index=sequence.index, token_ids=tokens)
        if params.logprobs is not None and token is not None:
            output.logprobs = [_logprobs(token, params.logprobs)]
        if first:
            output.scheduled, output.cached_tokens = scheduled, self._cache_hit(request)
            if params.prompt_logprobs is not None:
                ids = request.prompt_token_ids
                output.prompt_logprobs = [None, *(_logprobs(i, params.prompt_logprobs) for i in ids[1:])]
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token in stops and sequence.made > params.min_tokens:
            output.finish_reason, output.stop_token_id = "stop", token
        elif sequence.made == sequence.limit:
            output.finish_reason = "length"
        if request.cache_salt == "fail-after-3" and sequence.made == 3:
            output.finish_reason, output.error, output.error_kind = "error", "out of luck", "engine"
        return output

    def _cache_hit(self, request: AddRequest) -> int:
        ids = request.prompt_token_ids
        key = tuple(ids)
        hit = (len(ids) - 1) // BLOCK * BLOCK if key in self._cached else 0
        self._cached.add(key)
        self._totals.prefix_query_tokens += len(ids)
        self._totals.prefix_hit_tokens += hit
        return hit


def _act(sequence: _Sequence) -> None:
    """Carry out the fault that a request asked for."""
    fault = sequence.request.cache_salt
    if fault in ("slow", "fail-after-3"):
        time.sleep(0.05)
    if fault == "long-step" and sequence.made == 0:
        time.sleep(3)
    if sequence.made == 3:
        FAULTS.get(fault, _none)()


def _raise() -> None:
    raise RuntimeError("a kernel failed")


def _none() -> None:
    pass


FAULTS: dict[str, Callable[[], None]] = {
    "raise-after-3": _raise,
    "die-after-3": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop-after-3": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def _logprobs(token: int, top: int) -> TokenLogprobs:
    ids = [token, *(i for i in range(FIRST_WORD, FIRST_WORD + top + 1) if i != token)][:top]
    return TokenLogprobs(token, -0.25, 1, ids, [-0.25 - 0.5 * n for n in range(top)])


def _error(request: AddRequest, message: str, kind: str) -> SequenceOutput:
    return SequenceOutput(request_id=request.request_id, finish_reason="error", error=message, error_kind=kind)


def create(config: EngineConfig, progress: Callable[[str, float], None]) -> FakeCore:
    """The core, after the loading that the environment asks for."""
    fault = os.environ.get("FAKE_LOAD_ERROR")
    if fault == "setting":
        raise SettingError("max_model_len", config.max_model_len, "must be at most 32")
    if fault == "model":
        raise PagetideError("the weights are damaged")
    if fault == "crash":
        os._exit(7)
    seconds = float(os.environ.get("FAKE_LOAD_S", "0"))
    for tenth in range(10):
        progress("weights", tenth / 10)
        time.sleep(seconds / 10)
    return FakeCore(config)
