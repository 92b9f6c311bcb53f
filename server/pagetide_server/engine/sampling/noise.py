"""Random numbers that depend on what they are for, not on when they are sampled.

Every token of the vocabulary has a number of its own behind every token of an answer, fixed by the request's key, the
answer's index and the position. So a seeded request gives the same tokens whatever shares its batch, and after every
preemption.

Hashing a whole vocabulary for every token would cost more than the model's own logits. The numbers are the exclusive or
of two pieces of two fixed tables of random bits; where the pieces begin is a hash (44 bits).
"""

from __future__ import annotations

import functools
import hashlib
import os

import numpy as np
import torch

from ..sequence import Sequence

BITS = 31
_STARTS = 1 << 22


class Noise:
    """Source of the numbers of one engine.

    A request with a seed is keyed by the seed. One without is keyed by the engine's seed and the order of its arrival:
    equal requests differ, and an engine with a seed that gets the same requests in the same order repeats itself.
    """

    def __init__(self, vocab_size: int, device: torch.device, engine_seed: int | None = None) -> None:
        own = os.urandom(16) if engine_seed is None else b"engine seed %d" % engine_seed
        self._own = hashlib.blake2b(own, digest_size=32).digest()
        self._size, self._device = vocab_size, device

    @functools.cached_property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two fixed tables of random bits, int32, on the device; made when they are first asked for."""
        first, second = (table.to(self._device) for table in _tables(self._size))
        return first, second

    def bits(self, sequence: Sequence) -> torch.Tensor:
        """Of each token id, `BITS` random bits for the next token of `sequence`: [vocab_size] int32."""
        (one, two), (first, second) = self.tables, self.starts(sequence)
        return one[first : first + self._size] ^ two[second : second + self._size]

    def bits_of(self, sequence: Sequence, token_ids: torch.Tensor) -> torch.Tensor:
        """`bits(sequence)[token_ids]`, without computing the others."""
        (one, two), (first, second) = self.tables, self.starts(sequence)
        return one[token_ids + first] ^ two[token_ids + second]

    def starts(self, sequence: Sequence) -> tuple[int, int]:
        """Where the pieces of the two `tables` begin whose exclusive or is `bits(sequence)`."""
        what = b"%d/%d" % (sequence.index, sequence.generated)
        digest = hashlib.blake2b(what, key=self._key(sequence), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little") % _STARTS, int.from_bytes(digest[4:], "little") % _STARTS

    def _key(self, sequence: Sequence) -> bytes:
        seed = sequence.params.seed
        if seed is None:
            return hashlib.blake2b(b"%d" % sequence.arrival_order, key=self._own, digest_size=32).digest()
        return hashlib.blake2b(b"request seed %d" % seed, digest_size=32).digest()


def table_bytes(vocab_size: int) -> int:
    """Bytes that the tables of a `Noise` take on its device."""
    return 2 * 4 * (_STARTS + vocab_size)


@functools.lru_cache(maxsize=1)
def _tables(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in every process. A longer table begins like a shorter one."""
    sources = (np.random.Philox(key=1), np.random.Philox(key=2))
    raw = (source.random_raw((_STARTS + vocab_size + 1) // 2).view(np.int32) for source in sources)
    first, second = (torch.from_numpy(np.bitwise_and(bits, (1 << BITS) - 1, dtype=np.int32)) for bits in raw)
    return first, second


def races(bits: torch.Tensor) -> torch.Tensor:
    """Exponential variables of mean 1, negative: log(1 - u) for u in (0, 1) of the given bits; float32 like `bits`.

    Small ones, which decide, are exact: u is. None is 0 or infinite.
    """
    u = bits.float().add_(0.5).mul_(2.0**-BITS).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_()
