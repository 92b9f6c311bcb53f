"""RMS norm in Triton, with the addition of a residual before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .devices import on_its_device

# A row is held in registers as a whole.
MAX_SIZE = 65536


@on_its_device
def rms_norm(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    plus_one: bool = False,
) -> torch.Tensor:
    """hidden / sqrt(mean(hidden ** 2) + eps) * weight, row by row, computed in float32.

    Args:
        hidden: [rows, size], or heads [rows, heads, size] that may be columns of a larger tensor; the last dimension
            contiguous.
        weight: [size].
        eps: added to the mean square.
        residual: like `hidden` [rows, size], or None. `hidden` is added to it, in place, and the sum is what is normed.
        plus_one: the factor is 1 + weight (Gemma).

    Returns:
        like `hidden`, contiguous.

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    _check(hidden, weight, residual)
    rows, size = hidden.shape[0], hidden.shape[-1]
    heads, head_stride = (hidden.shape[1], hidden.stride(1)) if hidden.dim() == 3 else (1, 0)
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    if not out.numel():
        return out
    padded = triton.next_power_of_2(size)
    _rms_norm_kernel[(rows, heads)](
        hidden,
        weight,
        hidden if residual is None else residual,
        out,
        hidden.stride(0),
        head_stride,
        0 if residual is None else residual.stride(0),
        eps,
        SIZE=size,
        PADDED=padded,
        ADDS=residual is not None,
        PLUS_ONE=plus_one,
        num_warps=max(1, min(16, padded // 512)),
    )
    return out


def _check(hidden: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if hidden.dim() not in (2, 3) or not 1 <= hidden.shape[-1] <= MAX_SIZE:
        raise ValueError(f"hidden must be [rows, size], 1 <= size <= {MAX_SIZE}, not {tuple(hidden.shape)}")
    if residual is not None and hidden.dim() != 2:
        raise ValueError(f"with a residual hidden must be [rows, size], not {tuple(hidden.shape)}")
    if weight.shape != hidden.shape[-1:]:
        raise ValueError(f"weight must be [{hidden.shape[-1]}] like a row of hidden, not {tuple(weight.shape)}")
    if residual is not None and (residual.shape != hidden.shape or residual.dtype != hidden.dtype):
        raise ValueError(
            f"residual must be {tuple(hidden.shape)} {hidden.dtype} like hidden, not {tuple(residual.shape)} "
            f"{residual.dtype}"
        )
    for name, tensor in (("hidden", hidden), ("weight", weight), ("residual", residual)):
        if tensor is not None and tensor.stride(-1) != 1:
            raise ValueError(f"the last dimension of {name} must be contiguous; its strides are {tensor.stride()}")
        if tensor is not None and tensor.device != hidden.device:
            raise ValueError(f"{name} lies on {tensor.device}, hidden on {hidden.device}")


@triton.jit
def _rms_norm_kernel(
    hidden,
    weight,
    residual,
    out,
    hidden_stride,
    head_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADDS: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    hidden += row * hidden_stride + head * head_stride
    places = tl.arange(0, PADDED)
    mask = places < SIZE
    x = tl.load(hidden + places, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(residual + row * residual_stride + places, mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(out.dtype.element_ty)
        tl.store(residual + row * residual_stride + places, rounded, mask=mask)
        # What the next layer will read is what is normed.
        x = rounded.to(tl.float32)
    factor = tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    if PLUS_ONE:
        factor += 1.0
    normed = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)) * factor
    tl.store(out + (row * tl.num_programs(1) + head) * SIZE + places, normed.to(out.dtype.element_ty), mask=mask)
