"""Sampling tokens from the distributions of several rows, by a race.

Each token has an exponential random variable of its own (noise.py), and the token whose variable divided by its weight
is least wins: it does so with the probability that is its share of the weights. (The same as adding Gumbel noise to
logits.) A winner changes only if another token comes within rounding of it, so that a seeded answer survives logits
that are rounded otherwise in another batch about as well as a greedy one does. Inverting the cumulative distribution
would add up the rounding of all tokens before it.

Three ways, by what a row asks for:

- top-k: only the k largest logits are ever turned into probabilities;
- top-p alone: let all tokens race, and keep the winner if the likelier tokens together have less than p of the mass;
  otherwise let the likelier ones race, with the same variables. It is the winner of the race after sorting and cutting
  at p, but nothing is sorted. (The idea of rejection from a shrinking set: FlashInfer, "Sorting-Free GPU Kernels for
  LLM Sampling", 2025.)
- neither: one race of all.

Probabilities of a large vocabulary are added in two levels, float32 inside blocks of 512 and float64 over them, so that
the cut at p is where it belongs.

This is torch's way. Where there is an op (kernel.py), that does the same in fewer passes; bench/sampler.py prints the
cost of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ...wire.messages import SamplingParams
from ..sequence import Sequence
from .noise import Noise, races

_BLOCK = 512
# Rows that are worked on together: few on a CPU, where they then stay in its cache; on a GPU the memory is the limit.
_CPU_ROWS, _GPU_ROWS = 2, 64
_MIN_PREFIX = 64


# At this temperature a difference of 0.1 between two logits makes one token e^100 times as likely as the other.
GREEDY_TEMPERATURE = 1e-3


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most probable token (of equal ones, the first) is the only one that may come."""
    return params.temperature <= GREEDY_TEMPERATURE or params.top_k == 1 or params.min_p >= 1


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample: from row `row` of the logits, for `sequence`; `top` is the row's largest logit."""

    row: int
    top: float
    sequence: Sequence

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.sequence.params


class MultinomialSampler:
    """Samples the tokens of one engine's steps. Keeps working space, but nothing of any sequence."""

    def __init__(self, vocab_size: int, device: torch.device, noise: Noise) -> None:
        self._vocab_size, self._device, self._noise = vocab_size, device, noise
        self._whole = _Whole(vocab_size, device)

    def draw(self, logits: torch.Tensor, draws: list[Draw]) -> dict[int, int]:
        """Row to sampled token id.

        Args:
            logits: [rows, vocab_size] float32; rows of `draws` hold no NaN and a finite largest value. Not changed.
            draws: what to sample.
        """
        groups: dict[int, list[Draw]] = {}
        for draw in draws:
            groups.setdefault(_prefix(draw.params.top_k, self._vocab_size), []).append(draw)
        tokens: dict[int, int] = {}
        for prefix, group in groups.items():
            way = _Prefix(prefix) if prefix else self._whole
            for some in _chunks(group, self._device):
                tokens.update(zip((d.row for d in some), way.draw(logits, some, self._noise), strict=True))
        return tokens


def _prefix(top_k: int, vocabulary: int) -> int:
    """How many of the largest logits to look at for `top_k`; 0 for all.

    It depends on nothing else, so that a row is treated alike in every batch. The surplus makes it unlikely that equal
    logits are cut in the middle.
    """
    if top_k <= 0 or top_k >= vocabulary:
        return 0
    size = _MIN_PREFIX
    while size < top_k + 16:
        size *= 2
    return min(size, vocabulary)


def _chunks(draws: list[Draw], device: torch.device) -> Iterator[list[Draw]]:
    size = _CPU_ROWS if device.type == "cpu" else _GPU_ROWS
    for start in range(0, len(draws), size):
        yield draws[start : start + size]


def _rows(values: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows; without a copy where they follow each other. Not to be changed."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return values[rows[0] : rows[0] + len(rows)]
    return values[rows]


def _column(values: list[float], device: torch.device) -> torch.Tensor:
    """[rows, 1] float64."""
    return torch.tensor(values, dtype=torch.float64).to(device).unsqueeze(1)


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of each row and their places, in order; of equal ones the first place comes first.

    Args:
        values: [rows, n].
        count: at most n.

    Returns:
        ([rows, count], [rows, count] int64).
    """
    top, places = values.topk(count, dim=-1)
    places, order = places.sort(dim=-1)
    top, order = top.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return top, places.gather(-1, order)


class _Prefix:
    """Samples among the `size` largest logits of each row; top-p and min-p apply to what top-k left."""

    def __init__(self, size: int) -> None:
        self._size = size

    def draw(self, logits: torch.Tensor, draws: list[Draw], noise: Noise) -> list[int]:
        device = logits.device
        values, places = largest(_rows(logits, [d.row for d in draws]), self._size)
        heat = _column([d.params.temperature for d in draws], device)
        weights = ((values.double() - values[:, :1].double()) / heat).exp_()
        ranks = torch.arange(self._size, device=device)
        weights.masked_fill_(ranks >= _column([d.params.top_k for d in draws], device), 0)
        weights.masked_fill_(weights < _column([d.params.min_p for d in draws], device), 0)
        before = weights.cumsum(-1) - weights
        limit = _column([d.params.top_p for d in draws], device) * weights.sum(-1, keepdim=True)
        # The most probable token always stays, also where p is 0 or rounds to it.
        weights.masked_fill_((before >= limit) & (ranks > 0), 0)
        bits = torch.stack([noise.bits_of(d.sequence, places[i]) for i, d in enumerate(draws)])
        chosen = (weights / races(bits)).argmin(-1, keepdim=True)
        return list(map(int, places.gather(-1, chosen).squeeze(1).tolist()))


class _Whole:
    """Samples from all tokens of each row; top-p and min-p apply."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._blocks = -(-vocabulary // _BLOCK)
        self._device = device
        self._places = torch.arange(self._blocks * _BLOCK, device=device)
        self._space: torch.Tensor | None = None

    def draw(self, logits: torch.Tensor, draws: list[Draw], noise: Noise) -> list[int]:
        weights = self._weights(logits, draws)
        times = races(torch.stack([noise.bits(d.sequence) for d in draws]))
        tokens = self._pick(weights, times)
        cut = [i for i, d in enumerate(draws) if d.params.top_p < 1]
        if cut:
            chosen = [draws[i] for i in cut]
            kept = self._cut(_rows(weights, cut), [tokens[i] for i in cut], chosen, _rows(times, cut))
            for i, token in zip(cut, kept, strict=True):
                tokens[i] = token
        return tokens

    def _weights(self, logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
        """exp((logit - largest) / temperature), 0 below min_p: [rows, blocks * _BLOCK] float32."""
        if self._space is None or self._space.shape[0] < len(draws):
            self._space = torch.zeros(len(draws), self._blocks * _BLOCK, device=self._device)
        weights = self._space[: len(draws)]
        part = weights[:, : self._vocabulary]
        torch.sub(
            _rows(logits, [d.row for d in draws]), _column([d.top for d in draws], self._device).float(), out=part
        )
        part.div_(_column([d.params.temperature for d in draws], self._device).float()).exp_()
        if any(d.params.min_p > 0 for d in draws):
            part.masked_fill_(part < _column([d.params.min_p for d in draws], self._device).float(), 0)
        return weights

    def _cut(self, weights: torch.Tensor, tokens: list[int], draws: list[Draw], times: torch.Tensor) -> list[int]:
        """`tokens`, those outside top-p sampled again.

        This ends: every rejection leaves fewer tokens, and the most probable one is never rejected.
        """
        result = list(tokens)
        open_rows = list(range(len(tokens)))
        limits = self._sums(weights).sum(-1) * _column([d.params.top_p for d in draws], self._device).squeeze(1)
        while True:
            likelier = self._likelier(weights, [result[i] for i in open_rows])
            before = self._sums(weights * likelier).sum(-1)
            rejected = ((before > 0) & (before >= limits)).nonzero().squeeze(1).tolist()
            if not rejected:
                break
            weights, limits, times = weights[rejected] * likelier[rejected], limits[rejected], times[rejected]
            open_rows = [open_rows[i] for i in rejected]
            again = self._pick(weights, times)
            for i, token in zip(open_rows, again, strict=True):
                result[i] = token
        return result

    def _likelier(self, weights: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        """Which tokens come before each row's token when sorted by weight, then by id: bool like `weights`."""
        ids = torch.tensor(tokens, device=self._device).unsqueeze(1)
        own = weights.gather(1, ids)
        return (weights > own).logical_or_((weights == own).logical_and_(self._places < ids))

    def _sums(self, weights: torch.Tensor) -> torch.Tensor:
        """Sum of each block: [rows, blocks] float64."""
        return weights.view(weights.shape[0], self._blocks, _BLOCK).sum(-1).double()

    def _pick(self, weights: torch.Tensor, times: torch.Tensor) -> list[int]:
        """The winner of each row: never a token of weight 0, for another has the weight 1 or was not rejected."""
        return list(map(int, (weights[:, : self._vocabulary] / times).argmin(-1).tolist()))
