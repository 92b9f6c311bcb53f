"""A core on the fakes that keeps all that it says."""

from __future__ import annotations

import dataclasses

from pagetide_server.engine.core import EngineCore
from pagetide_server.engine.scheduler import Scheduler, SchedulerConfig
from pagetide_server.wire.messages import AbortRequest, AddRequest, Ready, SamplingParams, SequenceOutput, Structure

from .fakes import VOCABULARY, FakeCompiler, FakeRunner, FakeSampler

CHOICE = Structure(kind="choice", value='["a"]')
SETTINGS = {
    "block_size": 4,
    "num_blocks": 32,
    "num_swap_blocks": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "max_queue_len": 3,
    "vocab_size": VOCABULARY,
}


class Harness:
    """A core on fakes, and everything that came out of it."""

    def __init__(self, async_scheduling=False, **changes):
        self.config = SchedulerConfig(**{**SETTINGS, **changes})
        self.scheduler = Scheduler(self.config)
        self.runner, self.sampler, self.compiler = FakeRunner(), FakeSampler(), FakeCompiler()
        ready = Ready(
            max_model_len=64, vocab_size=VOCABULARY, eos_token_ids=[], max_num_seqs=4, max_num_batched_tokens=64,
            block_size=4, num_blocks=32, num_swap_blocks=32, dtype="float32", device="fake", attention="none",
        )  # fmt: skip
        self.core = EngineCore(self.scheduler, self.runner, self.sampler, self.compiler, ready, async_scheduling)
        self.outputs: list[SequenceOutput] = []

    def add(self, name, prompt=5, *, priority=0, arrival=0.0, **params):
        ids = [1 + (len(name) + i) % 50 for i in range(prompt)] if isinstance(prompt, int) else prompt
        wanted = SamplingParams(**{"max_tokens": 3, **params})
        found = self.core.add(
            AddRequest(request_id=name, prompt_token_ids=ids, params=wanted, arrival=arrival, priority=priority)
        )
        self.outputs += found
        return found

    def set_budget(self, tokens):
        """From the next step on, max_num_batched_tokens."""
        self.scheduler.config = dataclasses.replace(self.scheduler.config, max_num_batched_tokens=tokens)

    def abort(self, name, index=None):
        found = self.core.abort(AbortRequest(name, index))
        self.outputs += found
        self.scheduler.check_integrity()
        return found

    def step(self):
        outputs = self.core.step().outputs
        self.scheduler.check_integrity()
        self.outputs += outputs
        return outputs

    def run(self):
        for _ in range(200):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError("the loop does not come to an end")

    def tokens(self, name, index=0):
        return [t for o in self.outputs if (o.request_id, o.index) == (name, index) for t in o.token_ids]

    def ends(self):
        """(request, index) -> finish reasons; one each."""
        found = {}
        for o in self.outputs:
            if o.finish_reason is not None:
                found.setdefault((o.request_id, o.index), []).append(o.finish_reason)
        assert all(len(reasons) == 1 for reasons in found.values()), "an answer ended twice"
        return {key: reasons[0] for key, reasons in found.items()}

    def check_empty(self):
        stats = self.core.stats()
        assert (stats.running, stats.waiting, stats.swapped) == (0, 0, 0)
        assert (stats.blocks_used, stats.blocks_swapped) == (0, 0)
        assert stats.blocks_free + stats.blocks_cached == self.config.num_blocks
        assert stats.oldest_arrival is None
        assert not self.core.is_waiting()
