"""API keys: which requests are allowed, how many at once and how often, and a cache salt for each.

Keys are kept as hashes, and a key is found by its hash: what the look-up's time tells is about a hash of which nobody
can choose the beginning, and nothing about the keys there are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from pagetide_http.bearer import bearer_key, unauthorized

from ..web.errors import too_many_a_minute, too_many_at_once

# A burst may use up the requests of so many seconds.
BURST_S = 10.0


@dataclasses.dataclass(frozen=True)
class Key:
    """One client's key. `digest`: SHA-256; `cache_salt`: "" shares the prefix cache with all others that have none."""

    name: str
    digest: bytes
    max_concurrent: int | None = None
    requests_per_minute: float | None = None
    cache_salt: str = ""


def make_key(name: str, secret: str, **limits: Any) -> Key:
    """A key from its text; its salt comes from it, the same in every gateway, unless one is given."""
    digest = _digest(secret.encode())
    salt = hashlib.sha256(b"pagetide cache salt" + digest).hexdigest()[:32]
    return Key(name, digest, **{"cache_salt": salt, **limits})


@dataclasses.dataclass
class _Use:
    in_flight: int = 0
    tokens: float = 0.0
    at: float = 0.0


class KeyRing:
    """The keys there are now, and what each one is using. `replace` changes the keys and keeps the uses."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._uses: dict[str, _Use] = {}
        self._keys: dict[bytes, Key] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """From now on these are the keys."""
        self._keys = {key.digest: key for key in keys}
        names = {key.name for key in self._keys.values()}
        self._uses = {name: use for name, use in self._uses.items() if name in names}

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, authorization: str | None) -> Key:
        """The key of an `Authorization: Bearer KEY` header.

        Raises:
            ApiError: 401: there is none, or nobody has it.
        """
        secret = bearer_key(authorization or "")
        key = self._keys.get(_digest(secret))
        if key is None:
            raise unauthorized(secret)
        return key

    @contextlib.contextmanager
    def use(self, key: Key, now: float) -> Iterator[None]:
        """Count one request in, for as long as the context lasts.

        Raises:
            ApiError: 429: the key is at one of its limits.
        """
        use = self._uses.get(key.name)
        if use is None:
            use = self._uses[key.name] = _Use(tokens=_burst(key), at=now)
        if key.max_concurrent is not None and use.in_flight >= key.max_concurrent:
            raise too_many_at_once(key.name, key.max_concurrent)
        _take(key, use, now)
        use.in_flight += 1
        try:
            yield
        finally:
            use.in_flight -= 1


def _burst(key: Key) -> float:
    return max(1.0, (key.requests_per_minute or 0.0) * BURST_S / 60)


def _take(key: Key, use: _Use, now: float) -> None:
    """Take one token from the key's bucket, which fills with time.

    Raises:
        ApiError: 429: it is empty.
    """
    if key.requests_per_minute is None:
        return
    rate = key.requests_per_minute / 60
    use.tokens = min(_burst(key), use.tokens + (now - use.at) * rate)
    use.at = now
    if use.tokens < 1:
        raise too_many_a_minute(key.name, key.requests_per_minute, (1 - use.tokens) / rate)
    use.tokens -= 1


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
