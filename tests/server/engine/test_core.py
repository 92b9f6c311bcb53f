"""The loop around scheduler, model and sampler: who gets what, whom a failure harms. Model and sampler are fakes."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch

from pagetide_server.engine.core import EngineCore
from pagetide_server.engine.faults import DeviceLost, RequestFault
from pagetide_server.engine.sampling.sampled import Sampled
from pagetide_server.engine.scheduler import Scheduler, SchedulerConfig
from pagetide_server.engine.sequence import UNKNOWN_TOKEN
from pagetide_server.wire.messages import (
    AbortRequest,
    AddRequest,
    Ready,
    SamplingParams,
    SequenceOutput,
    Structure,
    TokenLogprobs,
)
from pagetide_spec.errors import PagetideError

VOCABULARY = 100
CHOICE = Structure(kind="choice", value='["a"]')


class FakeRunner:
    """Logits are the next token itself: that of the sequence's length. Of prompt positions they are the position."""

    def __init__(self):
        self.faults = {}
        self.steps = []

    def execute(self, step, carried=None):
        self.steps.append(step)
        for row in step.rows:
            if row.sequence.tokens[row.start + row.count - 1] == UNKNOWN_TOKEN:
                place = carried.places[row.sequence]
                assert carried.token_ids[place] == len(row.sequence.tokens) - 1, "the token of another sequence"
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

    def __init__(self, runs_ahead=False, **changes):
        self.config = SchedulerConfig(**{**SETTINGS, **changes})
        self.scheduler = Scheduler(self.config)
        self.runner, self.sampler, self.compiler = FakeRunner(), FakeSampler(), FakeCompiler()
        ready = Ready(
            max_model_len=64, vocab_size=VOCABULARY, eos_token_ids=[], max_num_seqs=4, max_num_batched_tokens=64,
            block_size=4, num_blocks=32, num_swap_blocks=32, dtype="float32", device="fake", attention="none",
        )  # fmt: skip
        self.core = EngineCore(self.scheduler, self.runner, self.sampler, self.compiler, ready, runs_ahead)
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


@pytest.fixture
def harness():
    """Makes harnesses; at the end each has come to rest with nothing left of any request."""
    made = []

    def make(**changes):
        made.append(Harness(**changes))
        return made[-1]

    yield make
    for each in made:
        each.run()
        each.check_empty()
        each.ends()


# ---- requests in


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        pytest.param([], {}, "no token", id="an empty prompt"),
        pytest.param([5, VOCABULARY], {}, "token id", id="an id outside the vocabulary"),
        pytest.param([5, -1], {}, "token id", id="a negative id"),
        pytest.param(64, {}, "max_model_len of 64", id="a prompt that fills the window"),
        pytest.param(
            64, {"structure": CHOICE}, "max_model_len of 64", id="the same with a structure: before compiling"
        ),
        pytest.param(5, {"n": 5}, "max_num_seqs is 4", id="more answers than slots"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(harness, prompt, params, words):
    made = harness()
    (refusal,) = made.add("a", prompt, **params)
    assert (refusal.finish_reason, refusal.error_kind) == ("error", "invalid")
    assert words in refusal.error
    assert not made.core.has_work()
    made.check_empty()


def test_an_id_in_use_is_refused_and_free_again_at_the_end(harness):
    made = harness()
    made.add("a")
    made.add("b", structure=CHOICE)
    for name in ("a", "b"):
        (refusal,) = made.add(name)
        assert refusal.error_kind == "invalid"
        assert "in use" in refusal.error
    made.abort("b")
    made.run()
    made.outputs.clear()
    assert made.add("a") == made.add("b") == []


def test_requests_that_wait_for_their_grammar_count_in_the_queue(harness):
    made = harness(max_num_seqs=1, max_queue_len=2)
    made.add("a", structure=CHOICE)
    made.add("b", structure=CHOICE)
    made.add("c")
    (refusal,) = made.add("d")
    assert refusal.error_kind == "queue_full"
    assert made.add("e", structure=CHOICE)[0].error_kind == "queue_full"
    made.outputs = []
    assert made.core.stats().waiting == 3
    made.compiler.answer = "ready"
    made.run()
    assert set(made.ends()) == {("a", 0), ("b", 0), ("c", 0)}


def test_the_oldest_that_waits_may_wait_for_its_grammar(harness):
    made = harness(max_num_seqs=1, max_queue_len=9)
    made.add("first", arrival=1.0)
    made.step()
    made.add("b", structure=CHOICE, arrival=2.0)
    made.add("c", arrival=3.0)
    assert made.core.stats().oldest_arrival == 2.0
    made.compiler.answer = "ready"
    made.step()
    assert made.core.stats().oldest_arrival == 2.0


# ---- what comes out


def test_tokens_and_facts_of_the_first_output(harness):
    made = harness()
    made.add("a", 5, logprobs=0)
    made.run()
    first, *rest = made.outputs
    assert [o.token_ids for o in made.outputs] == [[5], [6], [7]]
    assert first.scheduled > 0
    assert all(o.scheduled == 0 for o in rest)
    assert all(len(o.logprobs) == 1 for o in made.outputs)
    made.add("b", 5)
    made.outputs = []
    made.run()
    assert made.outputs[0].cached_tokens == 4


@pytest.mark.parametrize(
    "budgets",
    [
        pytest.param([64] * 9, id="at once"),
        pytest.param([3] * 9, id="in pieces of three"),
        pytest.param([1] * 9, id="token by token"),
        pytest.param([5, 1, 7, 2, 64], id="in uneven pieces"),
    ],
)
def test_prompt_logprobs_are_whole_however_the_prompt_is_cut(harness, budgets):
    made = harness()
    prompt = list(range(40, 51))
    made.add("a", prompt, prompt_logprobs=2)
    for budget in budgets:
        made.set_budget(budget)
        if made.core.has_work():
            made.step()
    made.run()
    check_scores(made.outputs[0].prompt_logprobs, prompt)
    assert all(o.prompt_logprobs is None for o in made.outputs[1:])


def check_scores(scores, prompt):
    none, *others = scores
    assert none is None
    assert [(s.token_id, s.logprob) for s in others] == [(t, -float(i)) for i, t in enumerate(prompt[1:])]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("again", [1, 3, 8, 64])
def test_prompt_logprobs_are_whole_after_a_preemption(harness, mode, again):
    """The second time the prompt is cut elsewhere."""
    made = harness(policy="priority", max_num_seqs=1, max_num_batched_tokens=5, preemption_mode=mode)
    prompt = list(range(40, 57))
    made.add("a", prompt, prompt_logprobs=0, priority=1)
    made.step()
    made.step()
    made.add("b", 3, max_tokens=1)
    made.step()
    made.set_budget(again)
    made.run()
    stats = made.core.stats()
    assert (stats.preemptions_swap, stats.preemptions_recompute) == ((1, 0) if mode == "swap" else (0, 1))
    (first,) = [o for o in made.outputs if o.prompt_logprobs is not None]
    check_scores(first.prompt_logprobs, prompt)
    assert made.tokens("a") == [17, 18, 19]


def test_scores_come_with_the_only_output_of_a_prompt_that_is_only_scored(harness):
    made = harness()
    made.add("a", [7, 8, 9], prompt_logprobs=0, max_tokens=0)
    made.run()
    (output,) = made.outputs
    assert (output.token_ids, output.finish_reason) == ([], "length")
    check_scores(output.prompt_logprobs, [7, 8, 9])


# ---- aborts


def compiling(made):
    assert made.core.is_waiting()
    assert not made.core.has_work()


def waiting(made):
    made.compiler.answer = "ready"


def in_the_middle_of_the_prompt(made):
    made.compiler.answer = "ready"
    made.step()
    assert made.outputs == []


def running(made):
    made.compiler.answer = "ready"
    for _ in range(5):
        made.step()
    assert made.outputs


@pytest.mark.parametrize(
    ("structure", "reach"),
    [
        (CHOICE, compiling),
        *(
            (structure, reach)
            for structure in (None, CHOICE)
            for reach in (waiting, in_the_middle_of_the_prompt, running)
        ),
    ],
)
@pytest.mark.parametrize("index", [None, 0, 1])
def test_abort_at_any_point(harness, structure, reach, index):
    made = harness(max_num_batched_tokens=5)
    made.add("a", 12, n=2, max_tokens=6, structure=structure)
    reach(made)
    ended = made.abort("a", index)
    assert sorted(o.index for o in ended) == ([0, 1] if index is None else [index])
    assert {o.finish_reason for o in ended} == {"abort"}
    assert made.abort("a", index) == []
    if index is None:
        made.check_empty()
    made.compiler.answer = "ready"
    made.run()
    other = {0: 1, 1: 0}.get(index)
    if other is not None:
        assert made.ends() == {("a", index): "abort", ("a", other): "length"}
        assert made.tokens("a", other) == [12, 13, 14, 15, 16, 17]
        assert len(made.tokens("a", index)) < 6


def test_the_last_answer_withdrawn_while_compiling_ends_the_request(harness):
    made = harness()
    made.add("a", n=2, structure=CHOICE)
    made.abort("a", 0)
    assert made.core.is_waiting()
    made.abort("a", 1)
    made.check_empty()
    assert [o.index for o in made.outputs] == [0, 1]


def test_abort_of_what_is_unknown_ends_nothing(harness):
    made = harness()
    made.add("a", structure=CHOICE)
    assert made.abort("b") == made.abort("a", 3) == []
    made.compiler.answer = "ready"
    made.run()
    assert made.ends() == {("a", 0): "length"}


# ---- failures


def test_a_failing_forward_ends_the_requests_of_its_step_and_no_others(harness):
    made = harness(max_num_seqs=2)
    for name in ("a", "bb", "ccc"):
        made.add(name)
    made.runner.faults["bb"] = RuntimeError("out of memory")
    outputs = made.step()
    assert {(o.request_id, o.finish_reason, o.error_kind) for o in outputs} == {
        ("a", "error", "engine"),
        ("bb", "error", "engine"),
    }
    assert {o.error for o in outputs} == {"out of memory"}
    made.run()
    assert made.tokens("ccc") == [5, 6, 7]
    assert made.add("dddd") == []
    made.run()
    assert made.ends()["dddd", 0] == "length"


def test_a_failing_forward_takes_along_who_was_being_swapped_out(harness):
    made = harness(policy="priority", max_num_seqs=1, preemption_mode="swap")
    made.add("a", priority=1)
    made.step()
    made.add("bb")
    made.runner.faults["bb"] = RuntimeError()
    made.step()
    assert made.ends() == {("a", 0): "error", ("bb", 0): "error"}
    assert {o.error for o in made.outputs if o.error} == {"RuntimeError"}


def test_a_failing_forward_takes_along_who_was_being_swapped_in_without_a_row(harness):
    """The others' prompts leave nothing of the step's budget for scored tokens."""
    made = harness(
        policy="priority", max_num_seqs=2, preemption_mode="swap", max_scored_tokens=4, enable_prefix_caching=False
    )
    made.add("a", 20, prompt_logprobs=0, priority=5)
    made.step()
    made.step()
    made.add("bb", 20, prompt_logprobs=0, max_tokens=1)
    made.add("ccc", 3, max_tokens=1)
    made.step()
    made.step()
    made.runner.faults["bb"] = RuntimeError("out of memory")
    made.step()
    failed = made.runner.steps[-1]
    assert failed.swap_in
    assert [row.sequence.request_id for row in failed.rows] == ["bb"]
    assert made.ends() == {("a", 0): "error", ("bb", 0): "error", ("ccc", 0): "length"}


def test_a_failing_forward_leaves_who_is_to_be_recomputed_anyhow(harness):
    made = harness(policy="priority", max_num_seqs=1, preemption_mode="recompute")
    made.add("a", priority=1)
    made.step()
    made.add("bb")
    made.runner.faults["bb"] = RuntimeError("broken")
    made.run()
    assert made.ends() == {("a", 0): "length", ("bb", 0): "error"}
    assert made.tokens("a") == [5, 6, 7]


def test_all_answers_that_wait_for_a_failing_prompt_end(harness):
    made = harness(max_num_batched_tokens=4)
    made.add("a", 6, n=3)
    made.runner.faults["a"] = RuntimeError("broken")
    made.run()
    assert made.ends() == {("a", i): "error" for i in range(3)}


def test_a_lost_device_ends_the_loop(harness):
    made = harness()
    made.add("a")
    made.runner.faults["a"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        made.core.step()
    made.abort("a")


def test_a_row_of_nan_ends_its_answer_only(harness):
    made = harness()
    made.add("a")
    made.add("bb", n=2)
    made.sampler.nan.add("bb")
    made.run()
    assert made.ends() == {("a", 0): "length", ("bb", 0): "error", ("bb", 1): "error"}
    assert made.tokens("a") == [5, 6, 7]


def test_a_sampler_that_fails_for_one_request_fails_that_one(harness):
    made = harness()
    for name in ("a", "bb", "ccc"):
        made.add(name, n=1 + (name == "a"))
    made.step()
    made.sampler.broken.add("bb")
    made.step()
    # The forward was done once more, without moving any block again.
    assert [(len(s.rows), bool(s.copies)) for s in made.runner.steps[-2:]] == [(4, True), (4, False)]
    made.run()
    assert made.ends() == {("a", 0): "length", ("a", 1): "length", ("bb", 0): "error", ("ccc", 0): "length"}
    assert made.tokens("ccc") == made.tokens("a", 1) == [5, 6, 7]


def test_a_prompt_that_cannot_be_scored_fails_alone(harness):
    made = harness()
    made.add("a", [7, 99, 8], prompt_logprobs=0, n=2)
    made.add("bb")
    made.sampler.unscorable.add(99)
    made.run()
    assert made.ends() == {("a", 0): "error", ("a", 1): "error", ("bb", 0): "length"}


# ---- structures


def test_a_request_joins_when_its_grammar_is_there(harness):
    made = harness()
    made.add("a", structure=CHOICE)
    made.add("bb")
    made.run()
    assert set(made.ends()) == {("bb", 0)}
    assert (made.core.has_work(), made.core.is_waiting()) == (False, True)
    made.compiler.answer = "ready"
    assert made.core.has_work()
    made.run()
    assert made.tokens("a") == [5, 6, 7]


def test_the_order_of_arrival_does_not_depend_on_how_long_grammars_take(harness):
    """An engine with a seed draws by it, and must repeat itself."""
    made = harness()
    for name, structure in (("a", CHOICE), ("bb", None), ("ccc", CHOICE)):
        made.add(name, structure=structure)
    made.run()
    made.compiler.answer = "ready"
    made.run()
    orders = {row.sequence.request_id: row.sequence.arrival_order for step in made.runner.steps for row in step.rows}
    assert sorted(orders, key=orders.get) == ["a", "bb", "ccc"]


@pytest.mark.parametrize(
    ("answer", "kind", "indices"),
    [
        # A refusal stands for the whole request, a failure for one answer.
        pytest.param(PagetideError("json: no such type"), "invalid", [0], id="a wrong schema"),
        pytest.param(RuntimeError("panic"), "engine", [0, 2], id="a fault of the compiler"),
    ],
)
def test_a_grammar_that_does_not_compile_after_one_that_did(harness, answer, kind, indices):
    made = harness()
    made.compiler.answer = "ready"
    made.add("a", structure=CHOICE)
    made.step()
    made.compiler.answer = answer
    made.add("bb", n=3, structure=CHOICE)
    made.abort("bb", 1)
    made.run()
    withdrawn, *errors = [o for o in made.outputs if o.request_id == "bb"]
    assert withdrawn.finish_reason == "abort"
    assert [o.index for o in errors] == indices
    assert {(o.finish_reason, o.error_kind, o.error) for o in errors} == {("error", kind, str(answer))}
    assert made.tokens("a") == [5, 6, 7]


def test_a_grammar_without_matcher_fails_its_request_only(harness):
    made = harness()
    made.compiler.answer = "broken"
    made.add("a", n=2, structure=CHOICE, prompt_logprobs=0)
    made.add("bb")
    made.run()
    assert made.ends() == {("a", 0): "error", ("a", 1): "error", ("bb", 0): "length"}


@pytest.mark.parametrize(
    ("refused", "tokens"),
    [
        pytest.param((6,), [5], id="a token that the structure does not allow"),
        pytest.param(None, [], id="a matcher that raises"),
    ],
)
def test_a_matcher_that_cannot_go_on_fails_its_answer_only(harness, refused, tokens):
    made = harness()
    made.compiler.answer, made.compiler.refused = "ready", refused
    made.add("a", structure=CHOICE)
    made.add("bb")
    made.run()
    assert made.tokens("a") == tokens
    assert made.ends() == {("a", 0): "error", ("bb", 0): "length"}


@pytest.mark.parametrize(
    ("seen", "tokens"),
    [
        pytest.param(5, {0: [], 1: []}, id="at the first token"),
        pytest.param(6, {0: [5], 1: [5]}, id="later"),
    ],
)
def test_a_request_at_fault_ends_with_one_refusal_for_all_its_answers(harness, monkeypatch, seen, tokens):
    made = harness()
    made.compiler.answer, made.compiler.refused = "ready", (seen,)
    monkeypatch.setattr(FakeMatcher, "fault", RequestFault("too many items"))
    made.add("a", n=2, structure=CHOICE)
    made.add("bb")
    made.run()
    assert {i: made.tokens("a", i) for i in (0, 1)} == tokens
    (refusal,) = [o for o in made.outputs if o.request_id == "a" and o.finish_reason]
    assert (refusal.index, refusal.error_kind) == (0, "invalid")
    assert "too many items" in refusal.error
    assert made.ends()["bb", 0] == "length"
    assert not made.core.has_work()


def test_each_answer_has_a_matcher_of_its_own_that_survives_preemption(harness):
    made = harness(policy="priority", max_num_seqs=2, preemption_mode="recompute")
    made.compiler.answer = "ready"
    made.add("a", n=2, structure=CHOICE, priority=1, max_tokens=4)
    made.step()
    matchers = [row.sequence.matcher for row in made.core.step().outputs and made.runner.steps[-1].rows]
    made.add("bb", max_tokens=1)
    made.run()
    assert made.core.stats().preemptions_recompute == 1
    assert len(set(map(id, matchers))) == 2
    # The last token ends the answer; the matcher need not see it.
    assert [m.seen for m in matchers] == [[5, 6, 7], [5, 6, 7]]


def test_close_ends_the_compiler_and_tells_what_prompts_had_in_common(harness, caplog):
    caplog.set_level("INFO", "pagetide_server")
    made = harness()
    for name in ("a", "b"):
        made.add(name, list(range(10, 20)))
        made.run()
    stats = made.core.stats()
    assert (stats.prefix_tail_tokens, stats.prefix_shareable_tokens) == (1, {4: 8, 8: 8, 16: 0, 32: 0})
    made.core.close()
    assert made.compiler.closed
    assert "block_size: 2 prompts of 20 tokens" in caplog.text


# ---- running ahead


def test_a_step_begins_before_the_tokens_of_the_one_before_are_known(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=3)
    assert made.step() == []
    assert [o.token_ids for o in made.step()] == [[5]]
    assert len(made.runner.steps) == 2
    made.run()
    assert made.tokens("a") == [5, 6, 7]
    # That the third token is the last was known beforehand.
    assert len(made.runner.steps) == made.sampler.launched == 3


def test_a_sequence_that_turns_out_to_have_ended_was_computed_once_for_nothing(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=9, stop_token_ids=(6,))
    made.add("b", prompt=9, max_tokens=4)
    made.run()
    assert (made.tokens("a"), made.tokens("b")) == ([5, 6], [9, 10, 11, 12])
    assert made.ends() == {("a", 0): "stop", ("b", 0): "length"}
    # "b" waits for the beginning that it shares with "a", which has three rows for its two tokens.
    assert [len(step.rows) for step in made.runner.steps] == [1, 2, 2, 1, 1]


def test_what_must_look_at_tokens_waits_for_them(harness):
    made = harness(runs_ahead=True)
    made.compiler.answer = "ok"
    made.add("plain", max_tokens=6)
    made.add("scored", prompt=4, prompt_logprobs=1, max_tokens=2)
    made.add("told", prompt=3, logprobs=0, max_tokens=2)
    made.add("structured", prompt=2, structure=CHOICE, max_tokens=2)
    made.run()
    assert made.tokens("plain") == [5, 6, 7, 8, 9, 10]
    assert [made.tokens(name) for name in ("scored", "told", "structured")] == [[4, 5], [3, 4], [2, 3]]
    assert 0 < made.sampler.launched < len(made.runner.steps)


def test_an_abort_between_a_step_and_its_tokens(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=9)
    made.add("b", prompt=9, max_tokens=4)
    made.step()
    made.step()
    assert [o.finish_reason for o in made.abort("a")] == ["abort"]
    made.run()
    assert (made.tokens("a"), made.tokens("b")) == ([5], [9, 10, 11, 12])


def test_an_abort_of_all_leaves_a_step_to_end(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=9)
    made.step()
    made.abort("a")
    assert made.core.has_work()
    assert made.step() == []
    assert not made.core.has_work()


def test_a_failing_step_keeps_the_tokens_on_their_way(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=9)
    made.add("b", prompt=list(range(60, 69)), max_tokens=1)
    made.step()
    made.runner.faults["a"] = MemoryError("no room")
    made.step()
    assert (made.tokens("a"), made.tokens("b")) == ([5], [9])
    assert made.ends() == {("a", 0): "error", ("b", 0): "length"}


def test_nan_is_told_of_its_row_and_its_next_token_is_dropped(harness):
    made = harness(runs_ahead=True)
    made.sampler.nan.add("a")
    made.add("a", max_tokens=9)
    made.add("b", prompt=9, max_tokens=3)
    made.run()
    assert made.ends() == {("a", 0): "error", ("b", 0): "length"}
    assert made.tokens("b") == [9, 10, 11]


def test_a_sampler_that_raises_is_asked_again_for_each_row(harness):
    made = harness(runs_ahead=True)
    made.add("a", max_tokens=9, stop_token_ids=(6,))
    made.add("b", prompt=9, max_tokens=3)
    made.step()
    made.step()
    # By the time that this is found, "a" has ended.
    made.sampler.broken.add("b")
    made.run()
    assert made.ends() == {("a", 0): "stop", ("b", 0): "error"}


def test_tokens_that_never_come_are_a_lost_device():
    made = Harness(runs_ahead=True)
    made.add("a")
    made.sampler.lost = torch.AcceleratorError("illegal access")
    made.step()
    with pytest.raises(DeviceLost, match="illegal access"):
        made.step()
