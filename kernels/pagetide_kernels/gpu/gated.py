"""Gated activations in Triton: one half of a merged projection, activated, times the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .devices import on_its_device

BLOCK = 1024
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


@on_its_device
def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up, computed in float32.

    Args:
        gate_up: [rows, 2 * size], the gate's columns first; rows contiguous.
        activation: `silu`, `gelu` (by the error function) or `gelu_tanh` (by its approximation).

    Returns:
        [rows, size] in the dtype of `gate_up`.

    Raises:
        ValueError: another shape or activation, or strides that do not fit.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.shape[1]:
        raise ValueError(f"gate_up must be [rows, 2 * size], not {tuple(gate_up.shape)}")
    if gate_up.stride(1) != 1:
        raise ValueError(f"the rows of gate_up must be contiguous; its strides are {gate_up.stride()}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(size, BLOCK))
        _gated_kernel[grid](gate_up, out, gate_up.stride(0), SIZE=size, ACTIVATION=activation, BLOCK=BLOCK)
    return out


@triton.jit
def _gated_kernel(gate_up, out, stride, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = places < SIZE
    gate = tl.load(gate_up + row * stride + places, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + SIZE + places, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        active = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "gelu":
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # tanh(x) = 1 - 2 / (e^2x + 1)
        active = 0.5 * gate * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    tl.store(out + row * SIZE + places, (active * up).to(out.dtype.element_ty), mask=mask)
