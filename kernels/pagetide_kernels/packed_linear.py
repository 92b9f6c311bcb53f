"""Matrix products with weights that were brought into the form in which the processor reads them fastest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from .cpu import linear as cpu_linear
from .cpu.build import DTYPE_NAMES
from .dispatch import choose
from .reference import linear as plain

# What weights can be kept in: their own type, or 8 bits with a scale for every 32 numbers of a row.
KINDS = ("own", "int8")
# Numbers of a row that share a scale.
GROUP = plain.GROUP


@dataclasses.dataclass(frozen=True)
class PackedWeight:
    """Weights [rows, columns] in the form of one implementation; `scales` where they have 8 bits.

    `panels`: in the C++ ops' form; else data is [rows, columns] as it was, or whole numbers.
    """

    rows: int
    columns: int
    data: torch.Tensor
    scales: torch.Tensor | None
    panels: bool

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self.data.nbytes + (self.scales.nbytes if self.scales is not None else 0)


def pack(
    weight: torch.Tensor, kind: str = "own", release: Callable[[torch.Tensor], object] | None = None
) -> PackedWeight:
    """Bring weights into the form for `linear`.

    Args:
        weight: float32, float16 or bfloat16 [rows, columns] on the CPU. It may be overwritten, and must not be used
            any more: packed weights of its own type take its memory where they can.
        kind: `own` keeps every bit; `int8` rounds to 8 bits, scaled by the largest of every 32 numbers of a row.
        release: is given rows of `weight` that int8 does not need any more, while others are still to come.

    Raises:
        ValueError: it is no matrix of these types on the CPU, it has no column, or there is no such kind.
        MemoryError: there is no room for the panels.
    """
    if weight.dim() != 2 or weight.device.type != "cpu" or weight.dtype not in DTYPE_NAMES or not weight.shape[1]:
        raise ValueError(
            f"weights must be a float matrix on the CPU, not {weight.dtype} {tuple(weight.shape)} on {weight.device}"
        )
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    rows, columns = weight.shape
    weight = weight.contiguous()
    if choose(weight.device).name != "cpp":
        data, scales = plain.quantize(weight) if kind == "int8" else (weight, None)
        return PackedWeight(rows, columns, data, scales, panels=False)
    if kind == "own":
        return PackedWeight(rows, columns, cpu_linear.pack(weight), None, panels=True)
    return PackedWeight(
        rows, columns, *cpu_linear.quantize(rows, columns, lambda a, b: weight[a:b], release), panels=True
    )


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x w^T + bias, computed in float32.

    With weights of 8 bits the C++ op rounds x to 8 bits, too, with a scale for every 32 numbers of a row; without it
    only the weights are rounded.

    Args:
        x: float32 [..., columns]
        weight: from `pack`
        bias: float32 [rows] or None

    Returns:
        float32 [..., rows]

    Raises:
        ValueError: shapes or types do not fit together.
        MemoryError: there is no room for the sums.
    """
    if x.dtype != torch.float32 or x.shape[-1] != weight.columns:
        raise ValueError(f"x must be float32 [..., {weight.columns}], not {x.dtype} {tuple(x.shape)}")
    if bias is not None and (bias.dtype != torch.float32 or bias.shape != (weight.rows,)):
        raise ValueError(f"bias must be float32 [{weight.rows}], not {bias.dtype} {tuple(bias.shape)}")
    rows = x.reshape(-1, weight.columns)
    if not weight.panels:
        out = plain.linear(rows, weight.data, weight.scales, bias)
    else:
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        out = cpu_linear.linear(rows, weight.data, weight.scales, weight.rows, bias)
    return out.view(*x.shape[:-1], weight.rows)


def look_up(ids: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """Rows of packed weights: int64 [...] -> float32 [..., columns].

    Raises:
        IndexError: there is no such row.
    """
    flat = ids.reshape(-1).contiguous()
    if not weight.panels:
        out = plain.look_up(flat, weight.data, weight.scales)
    else:
        out = cpu_linear.look_up(flat, weight.data, weight.scales, weight.rows, weight.columns)
    return out.view(*ids.shape, weight.columns)
