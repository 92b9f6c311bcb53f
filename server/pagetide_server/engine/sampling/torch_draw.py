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

This is torch's way. Where there is an op (op_draw.py), that does the same in fewer passes; bench/sampler.py prints the
cost of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..sequence import Sequence
from .greedy import greedy
from .noise import Noise, races

_BLOCK = 512
# Rows that are worked on together: few on a CPU, where they then stay in its cache; on a GPU the memory is the limit.
_CPU_ROWS, _GPU_ROWS = 2, 64
_MIN_PREFIX = 64


def draw_by_torch(logits: torch.Tensor, drawn: dict[int, Sequence], noise: Noise) -> tuple[torch.Tensor, torch.Tensor]:
    """On every device; see `sampler.Way`."""
    tokens, tops = greedy(logits)
    is_finite = tops.isfinite().tolist()
    groups: dict[int, list[int]] = {}
    for row, sequence in drawn.items():
        if is_finite[row]:
            groups.setdefault(_prefix(sequence.params.top_k, logits.shape[1]), []).append(row)
    for prefix, group in groups.items():
        for rows in _chunks(group, logits.device):
            some, sequences = _rows(logits, rows), [drawn[row] for row in rows]
            if prefix:
                tokens[rows] = _of_leading(some, sequences, noise, prefix)
            else:
                tokens[rows] = _of_all(some, _rows(tops, rows), sequences, noise)
    return tokens, tops


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


def _chunks(rows: list[int], device: torch.device) -> Iterator[list[int]]:
    size = _CPU_ROWS if device.type == "cpu" else _GPU_ROWS
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


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


def _of_leading(logits: torch.Tensor, sequences: list[Sequence], noise: Noise, size: int) -> torch.Tensor:
    """int64 [rows]: tokens among the `size` largest logits of each row; top-p and min-p apply to what top-k left."""
    device = logits.device
    values, places = largest(logits, size)
    heat = _column([s.params.temperature for s in sequences], device)
    weights = ((values.double() - values[:, :1].double()) / heat).exp_()
    ranks = torch.arange(size, device=device)
    weights.masked_fill_(ranks >= _column([s.params.top_k for s in sequences], device), 0)
    weights.masked_fill_(weights < _column([s.params.min_p for s in sequences], device), 0)
    before = weights.cumsum(-1) - weights
    limit = _column([s.params.top_p for s in sequences], device) * weights.sum(-1, keepdim=True)
    # The most probable token always stays, also where p is 0 or rounds to it.
    weights.masked_fill_((before >= limit) & (ranks > 0), 0)
    bits = torch.stack([noise.bits_of(s, places[i]) for i, s in enumerate(sequences)])
    chosen = (weights / races(bits)).argmin(-1, keepdim=True)
    return places.gather(-1, chosen).squeeze(1)


def _of_all(logits: torch.Tensor, tops: torch.Tensor, sequences: list[Sequence], noise: Noise) -> torch.Tensor:
    """int64 [rows]: tokens among all of each row, whose largest logit is in `tops`; top-p and min-p apply."""
    weights = _weights(logits, tops, sequences)
    times = races(torch.stack([noise.bits(s) for s in sequences]))
    tokens = _winners(weights, times)
    cut = [i for i, s in enumerate(sequences) if s.params.top_p < 1]
    if cut:
        top_p = _column([sequences[i].params.top_p for i in cut], logits.device).squeeze(1)
        tokens[cut] = _cut(_rows(weights, cut), tokens[cut], top_p, _rows(times, cut))
    return tokens


def _weights(logits: torch.Tensor, tops: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """exp((logit - top) / temperature), 0 below min_p; behind the vocabulary 0 up to whole blocks of _BLOCK."""
    rows, vocabulary = logits.shape
    weights = logits.new_zeros(rows, -(-vocabulary // _BLOCK) * _BLOCK)
    part = weights[:, :vocabulary]
    torch.sub(logits, tops.unsqueeze(1), out=part)
    part.div_(_column([s.params.temperature for s in sequences], logits.device).float()).exp_()
    if any(s.params.min_p > 0 for s in sequences):
        part.masked_fill_(part < _column([s.params.min_p for s in sequences], logits.device).float(), 0)
    return weights


def _cut(weights: torch.Tensor, tokens: torch.Tensor, top_p: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """`tokens`, those outside top-p drawn again.

    This ends: every rejection leaves fewer tokens, and the most probable one is never rejected.
    """
    tokens, rows = tokens.clone(), torch.arange(len(tokens), device=tokens.device)
    places, limits = torch.arange(weights.shape[1], dtype=torch.int32, device=weights.device), _sums(weights) * top_p
    while True:
        likelier = _likelier(weights, tokens[rows], places)
        before = _sums(weights * likelier)
        rejected = ((before > 0) & (before >= limits)).nonzero().squeeze(1)
        if not len(rejected):
            return tokens
        weights, limits, times = weights[rejected] * likelier[rejected], limits[rejected], times[rejected]
        rows = rows[rejected]
        tokens[rows] = _winners(weights, times)


def _likelier(weights: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Which tokens (`places` are all) come before each row's when sorted by weight, then by id: bool like `weights`."""
    ids = tokens.unsqueeze(1)
    own = weights.gather(1, ids)
    return (weights > own).logical_or_((weights == own).logical_and_(places < ids.int()))


def _sums(weights: torch.Tensor) -> torch.Tensor:
    """[rows] float64 of weights [rows, n * _BLOCK]."""
    return weights.view(len(weights), -1, _BLOCK).sum(-1).double().sum(-1)


def _winners(weights: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: never a token of weight 0, for another has the weight 1 or was not rejected."""
    return (weights[:, : times.shape[1]] / times).argmin(-1)
