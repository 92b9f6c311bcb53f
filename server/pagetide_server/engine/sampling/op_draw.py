"""Drawing by one op: the race of torch_draw.py in C++, or in Triton, where no row waits for the host."""

from __future__ import annotations

import numpy as np
import torch

from pagetide_kernels.cpu import sample as cpu_sample

from ..sequence import Sequence
from .noise import Noise

# Of a greedy row among drawn ones: temperature, top_p, min_p.
_GREEDY = (1.0, 1.0, 0.0)


def draw_by_cpp(logits: torch.Tensor, drawn: dict[int, Sequence], noise: Noise) -> tuple[torch.Tensor, torch.Tensor]:
    """On the CPU; see `sampler.Way`."""
    shapes, top_ks, starts = _columns(len(logits), drawn, noise)
    columns = torch.tensor(shapes, dtype=torch.float64), torch.tensor(top_ks)
    return cpu_sample.sample(logits, *columns, *noise.tables, torch.tensor(starts))


def draw_by_triton(logits: torch.Tensor, drawn: dict[int, Sequence], noise: Noise) -> tuple[torch.Tensor, torch.Tensor]:
    """On a GPU, and waits for nothing; see `sampler.Way`."""
    from pagetide_kernels.gpu.sample import sample  # needs the package triton

    shapes, top_ks, starts = _columns(len(logits), drawn, noise)
    heats, top_ps, min_ps = _sent(np.array(shapes, np.float32).T.copy(), logits.device)
    top_k = _sent(np.array(top_ks, np.int32), logits.device)
    begins = _sent(np.array(starts, np.int64), logits.device)
    return sample(logits, heats, top_k, top_ps, min_ps, *noise.tables, begins), logits.amax(-1)


def _columns(
    rows: int, drawn: dict[int, Sequence], noise: Noise
) -> tuple[list[tuple[float, float, float]], list[int], list[tuple[int, int]]]:
    """(temperature, top_p and min_p; top_k; where in the tables the random numbers begin) of each row."""
    shapes, top_ks, starts = [_GREEDY] * rows, [1] * rows, [(0, 0)] * rows
    for row, sequence in drawn.items():
        params = sequence.params
        shapes[row] = params.temperature, params.top_p, params.min_p
        top_ks[row], starts[row] = max(0, params.top_k), noise.starts(sequence)
    return shapes, top_ks, starts


def _sent(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
