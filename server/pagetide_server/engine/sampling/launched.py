"""Tokens that are being chosen on the device, and the way to the host of what was chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from .sampled import NO_TOKEN, Sampled


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Tokens that are known already. `token_ids` stays within the vocabulary, also in rows with an error."""

    token_ids: torch.Tensor
    sampled: Sampled

    def wait(self) -> Sampled:
        """The tokens."""
        return self.sampled

    @classmethod
    def of(cls, sampled: Sampled) -> Chosen:
        """Tokens that were sampled on a CPU."""
        return cls(torch.tensor(sampled.token_ids).clamp_(min=0), sampled)


class Choosing:
    """Tokens on their way from a GPU: copied to pinned memory behind the kernels that choose them."""

    def __init__(self, token_ids: torch.Tensor, tops: torch.Tensor, reason: Callable[[int, float], object]) -> None:
        """Begin the copies.

        Args:
            token_ids: int64 [rows], on a GPU.
            tops: float32 [rows], the largest logit of each.
            reason: says of a row whose largest logit is not finite what went wrong.
        """
        self.token_ids, self._reason = token_ids, reason
        on_gpu = token_ids.device.type == "cuda"
        self._host = tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=on_gpu) for t in (token_ids, tops))
        for host, device in zip(self._host, (token_ids, tops), strict=True):
            host.copy_(device, non_blocking=True)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> Sampled:
        """The tokens, once they are in host memory."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens, tops = (host.tolist() for host in self._host)
        errors = {row: self._reason(row, top) for row, top in enumerate(tops) if not math.isfinite(top)}
        return Sampled([NO_TOKEN if row in errors else t for row, t in enumerate(tokens)], [None] * len(tokens), errors)
