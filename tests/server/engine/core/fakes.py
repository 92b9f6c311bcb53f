"""A model, a sampler and a compiler of grammars that do what a test tells them."""

from __future__ import annotations

import types

from pagetide_server.engine.sampling.sampled import Sampled
from pagetide_server.engine.sequence import UNKNOWN_TOKEN
from pagetide_server.wire.messages import TokenLogprobs

VOCABULARY = 100


class FakeRunner:
    """Logits are the next token itself: that of the sequence's length. Of prompt positions they are the position."""

    def __init__(self):
        self.faults = {}
        self.steps = []

    def execute(self, step, device_tokens=None):
        self.steps.append(step)
        for row in step.rows:
            if row.sequence.tokens[row.start + row.count - 1] == UNKNOWN_TOKEN:
                place = device_tokens.places[row.sequence]
                assert device_tokens.token_ids[place] == len(row.sequence.tokens) - 1, "the token of another sequence"
            assert len(row.sequence.blocks) * 4 >= row.start + row.count, "a row was computed without its blocks"
            if (fault := self.faults.pop(row.sequence.request_id, None)) is not None:
                raise fault
        prompt = {
            i: list(range(row.start, row.start + row.count))
            for i, row in enumerate(step.rows)
            if row.sequence.is_scored
        }
        return types.SimpleNamespace(sampling=[len(s.tokens) for s in step.sampling()], prompt=prompt)


class FakeSampler:
    """Takes what the runner says; `nan` and `broken` name requests whose rows go wrong."""

    def __init__(self):
        self.nan, self.broken, self.unscorable = set(), set(), set()
        self.lost = None
        self.launched = 0

    def launch(self, logits, sequences):
        if any(s.params.structure or s.params.logprobs is not None for s in sequences):
            return None
        self.launched += 1
        return FakeLaunched(list(logits), self.sample(logits, sequences), self.lost)

    def sample(self, logits, sequences):
        if bad := self.broken.intersection(s.request_id for s in sequences):
            raise ValueError(f"cannot sample {bad}")
        errors = {row: "computed NaN" for row, s in enumerate(sequences) if s.request_id in self.nan}
        tokens = [-1 if row in errors else token for row, token in enumerate(logits)]
        logprobs = [None if s.params.logprobs is None else TokenLogprobs(0, -1.0, 1) for s in sequences]
        return Sampled(tokens, logprobs, errors)

    def prompt_logprobs(self, logits, next_token_ids, top):
        if self.unscorable.intersection(next_token_ids):
            raise ValueError("cannot score")
        return [TokenLogprobs(token, -float(at), top) for at, token in zip(logits, next_token_ids, strict=True)]


class FakeLaunched:
    """What `FakeSampler` would choose, told later; `fault` is raised instead. The device has a token for every row."""

    def __init__(self, token_ids, sampled, fault):
        self.token_ids, self._sampled, self._fault = token_ids, sampled, fault

    def wait(self):
        if self._fault is not None:
            raise self._fault
        return self._sampled


class FakeMatcher:
    fault = None

    def __init__(self, refused):
        self.refused, self.seen = refused, []

    def accept(self, token_id):
        self.seen.append(token_id)
        if self.refused is None:
            raise RuntimeError("the matcher is broken")
        return token_id not in self.refused


class FakeCompiler:
    """Compilations that are done when the test says so."""

    def __init__(self):
        self.answer = None
        self.refused = ()
        self.closed = False

    def compile(self, structure):
        return self

    def done(self):
        return self.answer is not None

    def result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self

    def matcher(self):
        if self.answer == "broken":
            raise RuntimeError("no matcher")
        return FakeMatcher(self.refused)

    def close(self):
        self.closed = True
