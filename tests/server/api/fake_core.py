"""The real engine core and scheduler around a model that is none: answers that follow from the prompt alone.

It runs in the real engine process (`core="fake_core:create"`). The first token of a prompt may ask for a fault, see
`SLOW` and those below it; a grammar that says "wrong" cannot be compiled, and one that says "endless" not be followed
beyond a token; `allowed_token_ids` dictate the answer.
Environment: FAKE_STEP_S (duration of a step), FAKE_BLOCKS (KV memory), FAKE_LOAD_S,
FAKE_LOAD_ERROR (setting | model | crash).
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
import types
from collections.abc import Callable

from pagetide_server.engine.core import EngineCore
from pagetide_server.engine.faults import StructureFault
from pagetide_server.engine.scheduler import Scheduler, SchedulerConfig
from pagetide_server.wire.messages import Ready, TokenLogprobs
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

EOS = 1
VOCAB = 400
FIRST_WORD = 262
# Prompts that begin with these: steps of 50 ms; an answer that fails, a core that raises and one that is killed, after
# three tokens; a first step that takes longer than heartbeats may stay away.
SLOW, FAIL, RAISE, DIE, LONG_STEP = 380, 381, 382, 383, 384
LONG_STEP_SECONDS = 8


def script(sequence) -> int:
    """The next token of an answer: always the same for the same prompt, index and place."""
    params, place = sequence.params, sequence.generated
    if params.allowed_token_ids:
        return (*params.allowed_token_ids, *[EOS] * (place + 1))[place]
    if forced := [token for token, bias in params.logit_bias.items() if bias >= 100]:
        return forced[0]
    index = 0 if params.temperature == 0 or params.top_k == 1 else sequence.index
    seed = ",".join(map(str, sequence.tokens[: sequence.prompt_len])) + f"/{index}/{place}"
    digest = hashlib.blake2b(seed.encode(), digest_size=2).digest()
    return FIRST_WORD + int.from_bytes(digest, "big") % (SLOW - FIRST_WORD)


class Model:
    """Runner and sampler at once; its logits are not looked at."""

    def __init__(self) -> None:
        self.broken = False
        self._step_seconds = float(os.environ.get("FAKE_STEP_S", "0.002"))

    def execute(self, step):
        time.sleep(self._step_seconds)
        for row in step.rows:
            self._act(row.sequence)
        prompt = {
            i: [0] * row.count for i, row in enumerate(step.rows) if row.sequence.params.prompt_logprobs is not None
        }
        return types.SimpleNamespace(sampling=[0] * len(step.sampling()), prompt=prompt)

    def _act(self, sequence) -> None:
        fault, at = sequence.tokens[0], sequence.generated
        if fault in (SLOW, FAIL):
            time.sleep(0.05)
        elif fault == LONG_STEP and at == 0:
            time.sleep(LONG_STEP_SECONDS)
        elif fault == DIE and at == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        self.broken = self.broken or (fault == RAISE and at == 3)

    def sample(self, logits, sequences):
        errors = {i: "out of luck" for i, s in enumerate(sequences) if s.tokens[0] == FAIL and s.generated == 3}
        tokens = [script(s) for s in sequences]
        asked = [s.params.logprobs for s in sequences]
        logprobs = [None if top is None else known(t, top) for t, top in zip(tokens, asked, strict=True)]
        for entry, sequence in zip(logprobs, sequences, strict=True):
            if entry is not None and sequence.params.allowed_token_ids:
                # What may not come has no probability at all.
                entry.top_logprobs = entry.top_logprobs[:1] + [-math.inf] * (len(entry.top_logprobs) - 1)
        return types.SimpleNamespace(token_ids=tokens, logprobs=logprobs, errors=errors)

    def prompt_logprobs(self, logits, next_token_ids, top):
        return [known(token, top) for token in next_token_ids]


def known(token: int, top: int) -> TokenLogprobs:
    """Log probabilities at a place where `token` is the most probable."""
    ids = [token, *(i for i in range(FIRST_WORD, FIRST_WORD + top + 1) if i != token)][:top]
    return TokenLogprobs(token, -0.25, 1, ids, [-0.25 - 0.5 * n for n in range(top)])


class Compiler:
    """Its grammars allow everything; it is compiler, compilation, grammar and matcher."""

    fault = StructureFault("the grammar has no end")

    def __init__(self, structure=None) -> None:
        self._structure, self._accepted = structure, 0

    def compile(self, structure):
        return Compiler(structure)

    def done(self):
        return True

    def result(self):
        if "wrong" in self._structure.value:
            raise PagetideError("the grammar is wrong")
        return self

    def matcher(self):
        return Compiler(self._structure)

    def accept(self, token_id):
        self._accepted += 1
        return self._structure.value != "endless" or self._accepted == 1

    def close(self):
        pass


class FakeCore(EngineCore):
    """The real one, whose steps raise once the model is broken."""

    def step(self):
        output = super().step()
        if self._runner.broken:
            raise RuntimeError("a kernel failed")
        return output


def settings(config: EngineConfig) -> SchedulerConfig:
    """What a real model would leave of the settings."""
    return SchedulerConfig(
        block_size=16, num_blocks=int(os.environ.get("FAKE_BLOCKS", "4096")), num_swap_blocks=0,
        max_num_seqs=config.max_num_seqs or 64,
        max_num_batched_tokens=2048, max_model_len=config.max_model_len or 512, policy=config.scheduling_policy,
        max_queue_len=config.max_queue_len, eos_token_ids=frozenset({EOS}),
    )  # fmt: skip


def load(progress: Callable[[str, float], None]) -> None:
    """The loading that the environment asks for."""
    fault = os.environ.get("FAKE_LOAD_ERROR")
    if fault == "setting":
        raise SettingError("max_model_len", 64, "must be at most 32")
    if fault == "model":
        raise PagetideError("the weights are damaged")
    if fault == "crash":
        os._exit(7)
    seconds = float(os.environ.get("FAKE_LOAD_S", "0"))
    for tenth in range(10):
        progress("weights", tenth / 10)
        time.sleep(seconds / 10)


def create(config: EngineConfig, progress: Callable[[str, float], None]) -> FakeCore:
    """The core, once it is loaded."""
    load(progress)
    limits, model = settings(config), Model()
    ready = Ready(
        max_model_len=limits.max_model_len, vocab_size=VOCAB, eos_token_ids=[EOS], max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens, block_size=limits.block_size,
        num_blocks=limits.num_blocks, num_swap_blocks=0, dtype="float32", device="fake", attention="none",
    )  # fmt: skip
    return FakeCore(Scheduler(limits), model, model, Compiler(), ready)
