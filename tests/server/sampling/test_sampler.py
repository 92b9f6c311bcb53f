import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide_kernels import dispatch
from pagetide_server.engine.sampling.noise import BITS
from pagetide_server.engine.sampling.sampled import NO_TOKEN
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence

VOCABULARY = 1000
INF, NAN = math.inf, math.nan
ALL = None
MakeSequence = Callable[..., Sequence]


@pytest.fixture(autouse=True, params=["cpp", "torch"])
def kernels(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "cpp":
        request.getfixturevalue("needs_compiler")
    monkeypatch.setenv(dispatch.VARIABLE, request.param)


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(VOCABULARY, "cpu", eos_token_ids=frozenset({2}), seed=0)


def random_logits(rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def tied_logits(rows: int) -> torch.Tensor:
    """Whole numbers: every row has its largest logit many times."""
    return random_logits(rows).round().clamp(max=4)


GREEDY = [
    pytest.param({"temperature": 0.0}, id="temperature 0"),
    pytest.param({"temperature": 0.0, "top_p": 0.5, "seed": 3}, id="temperature 0 with a seed and top-p"),
    pytest.param({"temperature": 1e-4}, id="temperature 1e-4"),
    pytest.param({"top_k": 1}, id="top_k 1"),
    pytest.param({"min_p": 1.0}, id="min_p 1"),
    pytest.param({"top_p": 1e-6}, id="tiny top_p"),
    pytest.param({"top_p": 1e-6, "top_k": 50}, id="tiny top_p within top_k"),
    pytest.param({"top_p": 0.0}, id="top_p 0"),
    pytest.param({"temperature": 2.0, "top_p": 1e-9, "min_p": 0.1}, id="all at once"),
]


@pytest.mark.parametrize("params", GREEDY)
@pytest.mark.parametrize("logits", [random_logits(40), tied_logits(40)], ids=["distinct", "ties"])
def test_limits_equal_greedy_and_of_equal_logits_the_first_comes(
    sampler: Sampler, make: MakeSequence, params: dict[str, Any], logits: torch.Tensor
) -> None:
    expected = logits.argmax(-1).tolist()
    assert sampler.sample(logits.clone(), [make(**params) for _ in range(40)]).token_ids == expected


def test_greedy_builds_no_distribution(sampler: Sampler, make: MakeSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("exp_", "softmax", "log_softmax", "sort", "topk", "cumsum"):
        monkeypatch.setattr(torch.Tensor, name, None)
    assert len(sampler.sample(random_logits(3), [make(temperature=0.0) for _ in range(3)]).token_ids) == 3


def kept(logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> dict[int, float]:
    """Token to probability after the cuts, the slow way: sort everything, in float64."""
    weights = torch.softmax(logits.double() / temperature, -1)
    weights[weights < min_p * weights.max()] = 0
    order = weights.sort(descending=True, stable=True).indices
    if top_k > 0:
        weights[order[top_k:]] = 0
    weights /= weights.sum()
    ranked = weights[order]
    weights[order[(ranked.cumsum(0) - ranked >= top_p) & (torch.arange(len(order)) > 0)]] = 0
    weights /= weights.sum()
    return {i: float(w) for i, w in enumerate(weights) if w > 0}


CUTS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.1, 3),
        "top_k": st.sampled_from([2, 3, 40, 60, 200, 999, 1000, 5000, -1]),
        "top_p": st.floats(0.01, 0.999),
        "min_p": st.floats(0.001, 0.9),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(CUTS, st.integers(0, 1000), st.booleans())
def test_no_token_comes_that_a_cut_forbids(
    sampler: Sampler, make: MakeSequence, params: dict[str, Any], seed: int, ties: bool
) -> None:
    logits = random_logits(1, seed)
    logits = logits.round() if ties else logits
    allowed = kept(logits[0], **params)
    drawn = sampler.sample(logits.expand(12, -1), [make(seed=i, **params) for i in range(12)]).token_ids
    # Where the mass comes within rounding of a limit, the neighbour may be in or out.
    slack = kept(logits[0], **{**params, "top_p": min(1.0, params.get("top_p", 1) + 1e-6)})
    assert set(drawn) <= allowed.keys() | slack.keys()


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="plain"),
        pytest.param({"temperature": 0.6}, id="cooler"),
        pytest.param({"temperature": 1.7}, id="hotter"),
        pytest.param({"top_p": 0.8}, id="top_p"),
        pytest.param({"top_p": 0.3}, id="narrow top_p, which draws again often"),
        pytest.param({"top_k": 7}, id="top_k"),
        pytest.param({"top_k": 9, "top_p": 0.7, "temperature": 1.3}, id="top_k then top_p"),
        pytest.param({"min_p": 0.1}, id="min_p"),
        pytest.param({"min_p": 0.05, "top_p": 0.8}, id="min_p then top_p"),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(make: MakeSequence, params: dict[str, Any]) -> None:
    draws, vocabulary = 4000, 30
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(5))
    sampler = Sampler(vocabulary, "cpu", seed=1)
    rows = [make(index=i, seed=9, **params) for i in range(draws)]
    counts = torch.bincount(
        torch.tensor(sampler.sample(logits.expand(draws, -1), rows).token_ids), minlength=vocabulary
    )
    expected = kept(logits[0], **params)
    statistic = sum((int(counts[i]) - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    freedom = len(expected) - 1
    # Pearson's chi-squared: mean = freedom, variance = 2 freedom. The seeds are fixed, so the outcome is, too.
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)
    assert int(counts.sum()) == sum(int(counts[i]) for i in expected)


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0], ids=["flat", "wide", "peaked"])
def test_a_vocabulary_of_262144_is_drawn_from_without_bias(make: MakeSequence, spread: float) -> None:
    size, draws, parts = 262_144, 640, 16
    sampler = Sampler(size, "cpu", seed=0)
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(1)) * spread
    rows = [make(index=i, seed=3) for i in range(draws)]
    tokens = [t for i in range(0, draws, 16) for t in sampler.sample(logits.expand(16, -1), rows[i : i + 16]).token_ids]
    # By place in the vocabulary, and by rank.
    weights = torch.softmax(logits[0].double(), -1)
    ranked = weights.sort(stable=True)
    ranks = torch.empty(size, dtype=torch.int64)
    ranks[ranked.indices] = torch.arange(size)
    for places, shares in ((torch.arange(size), weights.cumsum(0)), (ranks, ranked.values.cumsum(0))):
        found = torch.bincount((shares[places[tokens]] * parts).long().clamp(max=parts - 1), minlength=parts)
        inside = torch.bincount(
            (shares * parts).long().clamp(max=parts - 1), minlength=parts, weights=shares.diff(prepend=torch.zeros(1))
        )
        expected = inside * draws
        some = expected > 0
        statistic = float(((found - expected)[some] ** 2 / expected[some]).sum())
        freedom = int(some.sum()) - 1
        assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.95}, {"top_k": 50}, {"top_k": 50, "top_p": 0.9}], ids=str)
def test_rounding_of_logits_leaves_seeded_tokens_alone(make: MakeSequence, changes: dict[str, Any]) -> None:
    """A batch of another size takes other matrix kernels, whose results differ by about 1e-5."""
    size, rows = 65_536, 8
    random, sampler = torch.Generator().manual_seed(0), Sampler(65_536, "cpu")
    for start in range(0, 96, rows):
        logits = torch.randn(rows, size, generator=random) * 3
        rounded = logits + torch.randn(rows, size, generator=random) * 1e-5
        sequences = [make(seed=start + i, **changes) for i in range(rows)]
        assert sampler.sample(logits, sequences).token_ids == sampler.sample(rounded, sequences).token_ids


@pytest.mark.parametrize("bits", [0, 2**BITS - 1], ids=["least", "greatest"])
@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.9}], ids=["plain", "top_k", "top_p"])
def test_impossible_tokens_never_come_at_the_ends_of_the_range(
    sampler: Sampler, make: MakeSequence, monkeypatch: pytest.MonkeyPatch, bits: int, params: dict[str, Any]
) -> None:
    tables = [torch.full((VOCABULARY,), number, dtype=torch.int32) for number in (bits, 0)]
    monkeypatch.setattr(sampler._noise, "tables", tables)
    monkeypatch.setattr(sampler._noise, "starts", lambda sequence: (0, 0))
    logits = torch.full((1, VOCABULARY), -INF)
    logits[0, 400:403] = torch.tensor([1.0, 1.0, 0.5])
    assert sampler.sample(logits, [make(**params)]).token_ids[0] in (400, 401, 402)


MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 7},
    {"seed": 7, "top_p": 0.9},
    {"seed": 7, "top_k": 20},
    {"seed": 7, "top_k": 300, "top_p": 0.95},
    {"seed": -3, "min_p": 0.05, "logprobs": 2},
    {"seed": 0, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    {"seed": 2**70, "logit_bias": {5: 4.0}, "min_tokens": 9},
]


def test_a_row_gets_the_same_whatever_shares_its_batch(sampler: Sampler, make: MakeSequence) -> None:
    logits = random_logits(len(MIXED))
    rows = [make([1, 2, 3], [5, 5, 8], **params) for params in MIXED]
    alone = [sampler.sample(logits[i : i + 1].clone(), [row]) for i, row in enumerate(rows)]
    for order in (range(len(rows)), reversed(range(len(rows))), [6, 1, 4, 3, 0, 7, 2, 5]):
        order = list(order)
        mixed = sampler.sample(logits[order], [rows[i] for i in order])
        assert mixed.token_ids == [alone[i].token_ids[0] for i in order]
        assert mixed.logprobs == [alone[i].logprobs[0] for i in order]


def drawn(sampler: Sampler, rows: list[Sequence]) -> list[int]:
    return sampler.sample(random_logits(1).expand(len(rows), -1), rows).token_ids


@pytest.mark.parametrize("kernels", ["cpp"], indirect=True)
@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
def test_all_ways_draw_the_same(make: MakeSequence, monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    rows = [make([1, 2, 3], [5] * position, **params) for params in MIXED for position in range(8)]
    logits, found = random_logits(len(rows), spread=spread), []
    for name in ("cpp", "torch"):
        monkeypatch.setenv(dispatch.VARIABLE, name)
        found.append(Sampler(VOCABULARY, "cpu", seed=0).sample(logits.clone(), rows))
    assert found[0] == found[1]


def test_seeds(make: MakeSequence) -> None:
    first, second = Sampler(VOCABULARY, "cpu", seed=1), Sampler(VOCABULARY, "cpu", seed=2)

    def at(position: int, **kwargs: Any) -> Sequence:
        return make([1], [4] * position, **kwargs)

    answer = drawn(first, [at(i, seed=5) for i in range(20)])
    assert drawn(second, [at(i, seed=5, order=900) for i in range(20)]) == answer, "a seed fixes the answer"
    assert drawn(first, [at(i, seed=6) for i in range(20)]) != answer, "another seed"
    assert drawn(first, [at(i, seed=5, index=1) for i in range(20)]) != answer, "another of the n answers"
    assert len(set(answer)) > 1, "another position"
    unseeded = drawn(first, [at(i, order=3) for i in range(20)])
    assert drawn(first, [at(i, order=4) for i in range(20)]) != unseeded, "equal requests differ"
    assert drawn(second, [at(i, order=3) for i in range(20)]) != unseeded, "the engine's seed counts"
    assert drawn(Sampler(VOCABULARY, "cpu", seed=1), [at(i, order=3) for i in range(20)]) == unseeded
    free = [drawn(Sampler(VOCABULARY, "cpu"), [at(i, order=3) for i in range(20)]) for _ in range(2)]
    assert free[0] != free[1], "without any seed nothing repeats"


@pytest.mark.parametrize(
    ("change", "params", "words"),
    [
        pytest.param({7: NAN}, {"temperature": 0.0}, "NaN", id="one NaN, greedy"),
        pytest.param({7: NAN}, {"top_p": 0.9, "logprobs": 3}, "NaN", id="one NaN, sampled"),
        pytest.param({7: INF}, {}, "infinite", id="infinity"),
        pytest.param({ALL: -INF}, {}, "minus infinity", id="nothing possible"),
        pytest.param({ALL: NAN}, {"top_k": 4}, "NaN", id="NaN throughout"),
    ],
)
def test_a_broken_row_fails_alone(
    sampler: Sampler, make: MakeSequence, change: dict[Any, float], params: dict[str, Any], words: str
) -> None:
    logits = random_logits(3)
    for place, value in change.items():
        logits[1, slice(None) if place is ALL else place] = value
    good = [logits[0].argmax().item(), logits[2].argmax().item()]
    result = sampler.sample(logits, [make(temperature=0.0), make(**params), make(temperature=0.0, logprobs=1)])
    assert list(result.errors) == [1]
    assert words in result.errors[1]
    # The model is at fault, not the request.
    assert isinstance(result.errors[1], str)
    assert (result.token_ids[1], result.logprobs[1]) == (NO_TOKEN, None)
    assert [result.token_ids[0], result.token_ids[2]] == good


def test_an_empty_step_is_no_error(sampler: Sampler) -> None:
    assert sampler.sample(torch.empty(0, VOCABULARY), []).token_ids == []


def test_logits_of_another_width_are_refused(sampler: Sampler, make: MakeSequence) -> None:
    with pytest.raises(ValueError, match="1000"):
        sampler.sample(torch.zeros(1, 999), [make()])
