"""Random numbers that depend on what they are for, not on when they are drawn.

The number behind a token is a hash of the request's key, the answer's index and the token's position. So a seeded
request gives the same tokens whatever shares its batch, and after every preemption.
"""

from __future__ import annotations

import hashlib
import os

from .sequence import Sequence


class Uniform:
    """Source of the numbers of one engine.

    A request with a seed is keyed by the seed. One without is keyed by the engine's seed and the order of its arrival:
    equal requests differ, and an engine with a seed that gets the same requests in the same order repeats itself.
    """

    def __init__(self, engine_seed: int | None = None) -> None:
        own = os.urandom(16) if engine_seed is None else b"engine seed %d" % engine_seed
        self._own = hashlib.blake2b(own, digest_size=32).digest()

    def draw(self, sequence: Sequence, attempt: int = 0) -> float:
        """The number in [0, 1), of 53 random bits, for the next token of `sequence`.

        `attempt` numbers further draws for the same token.
        """
        what = b"%d/%d/%d" % (sequence.index, sequence.generated, attempt)
        digest = hashlib.blake2b(what, key=self._key(sequence), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def _key(self, sequence: Sequence) -> bytes:
        seed = sequence.params.seed
        if seed is None:
            return hashlib.blake2b(b"%d" % sequence.arrival_order, key=self._own, digest_size=32).digest()
        return hashlib.blake2b(b"request seed %d" % seed, digest_size=32).digest()
