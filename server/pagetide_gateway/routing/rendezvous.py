"""Rendezvous hashing: all that know the same names make the same choice (Thaler, Ravishankar, 1998)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def highest(key: bytes, names: Sequence[str]) -> str:
    """The name with the highest weight for this key.

    Where a name comes or goes, only the keys of that name change hands. Equal in every process, unlike Python's `hash`.
    """
    base = hashlib.blake2b(key, digest_size=8)
    return max(names, key=lambda name: (_weight(base, name), name))


def _weight(base: hashlib.blake2b, name: str) -> bytes:
    mixed = base.copy()
    mixed.update(name.encode())
    return mixed.digest()
