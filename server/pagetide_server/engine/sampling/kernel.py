"""Sampling by one op: the race of distribution.py in Triton, where no row waits for the host, or in C++."""

from __future__ import annotations

import numpy as np
import torch

from pagetide_kernels.cpu import sample as cpu_sample

from ..sequence import Sequence
from .distribution import Draw, is_greedy
from .noise import Noise

# Of a greedy row that is sampled with others: temperature, top_p, min_p; and top_k.
_GREEDY, _ONE = (1.0, 1.0, 0.0), 1


def _rows(sequences: list[Sequence]) -> tuple[list[tuple[float, float, float]], list[int]]:
    """(temperature, top_p and min_p; top_k) of each."""
    params = [s.params for s in sequences]
    shapes = [_GREEDY if is_greedy(p) else (p.temperature, p.top_p, p.min_p) for p in params]
    return shapes, [_ONE if is_greedy(p) else max(0, p.top_k) for p in params]


def sample_rows(logits: torch.Tensor, sequences: list[Sequence], noise: Noise) -> tuple[list[int], list[float]]:
    """A token for each row, and its largest logit, by the C++ op.

    Args:
        logits: [rows, vocabulary] float32 on the CPU, rows contiguous.
        sequences: whose next tokens they are; greedy ones get their most probable token.
        noise: of the engine.
    """
    shapes, top_ks = _rows(sequences)
    starts = [(0, 0) if top_k == _ONE else noise.starts(s) for s, top_k in zip(sequences, top_ks, strict=True)]
    columns = torch.tensor(shapes, dtype=torch.float64), torch.tensor(top_ks)
    tokens, tops = cpu_sample.sample(logits, *columns, *noise.tables, torch.tensor(starts))
    return tokens.tolist(), tops.tolist()


class KernelSampler:
    """Samples the tokens of one engine's steps, like `distribution.MultinomialSampler`."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def draw(self, logits: torch.Tensor, draws: list[Draw]) -> dict[int, int]:
        """Row to sampled token id; see `MultinomialSampler.draw`."""
        rows = [d.row for d in draws]
        wanted = logits if rows == list(range(len(logits))) else logits[rows]
        return dict(zip(rows, self.launch(wanted, [d.sequence for d in draws]).tolist(), strict=True))

    def launch(self, logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """A token for each row, int64 [rows], on the device; waits for nothing.

        Args:
            logits: [rows, vocabulary] float32, rows contiguous.
            sequences: whose next tokens they are; greedy ones get their most probable token.
        """
        from pagetide_kernels.gpu.sample import sample  # needs the package triton

        shapes, top_ks = _rows(sequences)
        heats, top_ps, min_ps = self._sent(np.array(shapes, np.float32).T.copy(), logits.device)
        starts = self._sent(np.array([self._noise.starts(s) for s in sequences], np.int64), logits.device)
        top_k = self._sent(np.array(top_ks, np.int32), logits.device)
        return sample(logits, heats, top_k, top_ps, min_ps, *self._noise.tables, starts)

    @staticmethod
    def _sent(array: np.ndarray, device: torch.device) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
