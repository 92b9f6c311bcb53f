"""Sample one token a row by temperature, top-k, min-p and top-p in Triton, without sorting the vocabulary.

Sorting is needed only to find where to cut. Here the cut is searched for instead: whole numbers that order like the
logits are halved 32 times, and each time the tokens above are counted (top-k) or their mass is added (top-p). Then all
tokens that are kept race, each with its exponential variable divided by its weight, and the least time wins, as it
would among the sorted ones (the same as adding Gumbel noise). One program a row, which the cache holds after the first
pass. Tokens of equal logits are ordered by their ids, everywhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .devices import on_its_device

BLOCK = 2048
BITS = 31


@on_its_device
def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """One token for each row.

    Kept are the top_k largest logits, of these the tokens at least min_p as likely as the most probable one, and of
    these the fewest that make up top_p of the mass; the most probable one always.

    Args:
        logits: float32 [rows, vocabulary], rows contiguous; a row holds at least one finite logit, no NaN and no +inf.
        temperature: float32 [rows], above 0.
        top_k: int32 [rows]; 0, or as many as the vocabulary holds, is all.
        top_p, min_p: float32 [rows]; 1 and 0 are all.
        first, second: int32 [n], tables of random numbers of `BITS` bits.
        starts: int64 [rows, 2], contiguous; token t of row r gets `first[starts[r, 0] + t] ^ second[starts[r, 1] + t]`,
            which must lie within the tables (that is not looked at, for the host would have to wait).

    Returns:
        int64 [rows]

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    _check(logits, temperature, top_k, top_p, min_p, (first, second), starts)
    rows, vocabulary = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(vocabulary))
        _sample_kernel[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            first,
            second,
            starts,
            out,
            logits.stride(0),
            vocabulary,
            BLOCK=block,
            num_warps=max(1, min(16, block // 128)),
        )
    return out


def _check(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    starts: torch.Tensor,
) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or not logits.shape[1]:
        raise ValueError(f"logits must be float32 [rows, vocabulary], not {logits.dtype} {tuple(logits.shape)}")
    rows = logits.shape[0]
    for name, column, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
    ):
        if column.dtype != dtype or column.shape != (rows,) or not column.is_contiguous():
            raise ValueError(f"{name} must be contiguous {dtype} [{rows}], not {column.dtype} {tuple(column.shape)}")
    for table in tables:
        if table.dtype != torch.int32 or table.dim() != 1 or not table.is_contiguous() or len(table) < logits.shape[1]:
            raise ValueError(
                f"tables must be int32 [{logits.shape[1]} or more], not {table.dtype} {tuple(table.shape)}"
            )
    if starts.dtype != torch.int64 or starts.shape != (rows, 2) or not starts.is_contiguous():
        raise ValueError(f"starts must be contiguous int64 [{rows}, 2], not {starts.dtype} {tuple(starts.shape)}")
    if logits.stride(1) != 1:
        raise ValueError(f"rows must be contiguous; strides are {logits.stride()}")
    if len({t.device for t in (logits, temperature, top_k, top_p, min_p, *tables, starts)}) > 1:
        raise ValueError("all arguments must lie on one device")


@triton.jit
def _order(x):
    """int32 that order like the float32 `x`; -0.0 counts as 0.0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _weights(x, largest, temperature, least):
    """exp((x - largest) / temperature), 0 below `least`."""
    w = tl.exp((x - largest) / temperature)
    return tl.where(w < least, 0.0, w)


@triton.jit
def _above(logits, vocabulary, cut, largest, temperature, least, BLOCK: tl.constexpr):
    """(number, mass) of the tokens whose order is at least `cut`."""
    number = 0
    mass = 0.0
    for begin in range(0, vocabulary, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        x = tl.load(logits + places, mask=places < vocabulary, other=float("-inf"))
        kept = (_order(x) >= cut) & (places < vocabulary)
        number += tl.sum(kept.to(tl.int32), 0)
        mass += tl.sum(tl.where(kept, _weights(x, largest, temperature, least), 0.0), 0)
    return number, mass


@triton.jit
def _greatest_cut(
    logits, vocabulary, low, high, wanted, largest, temperature, least, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest cut in low..high - 1 above which there are `wanted` tokens, or there is so much mass."""
    while high - low > 1:
        middle = low + (high - low) // 2
        number, mass = _above(logits, vocabulary, middle, largest, temperature, least, BLOCK)
        enough = mass >= wanted if BY_MASS else number >= wanted
        if enough:
            low = middle
        else:
            high = middle
    return low


# Numbers of single rows are read one by one: compiling for where their columns begin would gain nothing.
@triton.jit(do_not_specialize_on_alignment=["temperatures", "top_ks", "top_ps", "min_ps", "first", "second", "starts"])
def _sample_kernel(  # noqa: PLR0915 (a kernel is one piece)
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    first,
    second,
    starts,
    out,
    logits_stride,
    vocabulary,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    first += tl.load(starts + 2 * row)
    second += tl.load(starts + 2 * row + 1)
    temperature = tl.load(temperatures + row)
    least = tl.load(min_ps + row)
    top_p = tl.load(top_ps + row)
    top_k = tl.load(top_ks + row)

    largest = float("-inf")
    for begin in range(0, vocabulary, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        x = tl.load(logits + places, mask=places < vocabulary, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(x, 0))
    top_order = _order(largest).to(tl.int64)

    # The order of the k-th largest logit, and how many of that order are kept. Orders are searched for as int64, where
    # the middle of two of them cannot overflow.
    cut = top_order * 0 - 2147483648
    kept_ties = vocabulary
    if top_k == 1:
        # Greedy: its order is known.
        cut = top_order
        kept_ties = top_k
    elif (top_k > 0) & (top_k < vocabulary):
        cut = _greatest_cut(logits, vocabulary, cut, top_order + 1, top_k, largest, temperature, least, False, BLOCK)
        number, _ = _above(logits, vocabulary, cut + 1, largest, temperature, least, BLOCK)
        kept_ties = top_k - number

    if top_p < 1.0:
        all_number, all_mass = _above(logits, vocabulary, cut, largest, temperature, least, BLOCK)
        number, mass = _above(logits, vocabulary, cut + 1, largest, temperature, least, BLOCK)
        # All tokens of one order weigh the same; those that are kept are at most the ties found above.
        ties = tl.maximum(all_number - number, 1)
        mass += (all_mass - mass) / ties * tl.minimum(kept_ties, ties)
        limit = mass * top_p
        low = _greatest_cut(logits, vocabulary, cut, top_order + 1, limit, largest, temperature, least, True, BLOCK)
        number, mass = _above(logits, vocabulary, low + 1, largest, temperature, least, BLOCK)
        number_with, mass_with = _above(logits, vocabulary, low, largest, temperature, least, BLOCK)
        each = (mass_with - mass) / tl.maximum(number_with - number, 1)
        wanted = tl.maximum(tl.ceil((limit - mass) / each), 1.0)
        wanted = tl.where(wanted < 2147483520.0, wanted, 2147483520.0).to(tl.int32)
        kept_ties = tl.minimum(wanted, tl.where(low == cut, kept_ties, vocabulary))
        cut = low

    best = float("-inf")
    winner = top_k * 0
    seen = 0
    for begin in range(0, vocabulary, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        mask = places < vocabulary
        x = tl.load(logits + places, mask=mask, other=float("-inf"))
        order = _order(x)
        tied = (mask & (order == cut)).to(tl.int32)
        rank = seen + tl.cumsum(tied, 0) - tied
        seen += tl.sum(tied, 0)
        kept = mask & ((order > cut) | ((tied > 0) & (rank < kept_ties)))
        w = tl.where(kept, _weights(x, largest, temperature, least), 0.0)
        bits = tl.load(first + places, mask=mask, other=0) ^ tl.load(second + places, mask=mask, other=0)
        u = (bits.to(tl.float32) + 0.5) * (1.0 / 2147483648.0)
        u = tl.minimum(u, 1.0 - 5.9604644775390625e-08)
        # -log1p(-u), exact for small u, which decide (Kahan).
        rest = 1.0 - u
        time = tl.where(rest == 1.0, u, tl.log(rest) * u / tl.minimum(rest - 1.0, -5.9604644775390625e-08))
        speed = tl.where(w > 0.0, w / time, -1.0)
        fastest = tl.max(speed, 0)
        here = tl.min(tl.where(speed == fastest, places, 2147483647), 0)
        winner = tl.where(fastest > best, here, winner)
        best = tl.maximum(best, fastest)
    tl.store(out + row, winner.to(tl.int64))
