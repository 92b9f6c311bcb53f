"""What bytes each token stands for, worked out from a tokenizer's decoder.

A decoder turns token strings into text in one of two ways that this module knows exactly:

- byte-level (GPT-2, Llama 3, Qwen): every character of a token string stands for one byte;
- SentencePiece style (Gemma, Llama 2, Mistral): `▁` is a space, `<0xE9>` is a byte, and some strip one leading space
  from a text. GPT-1's `</w>`, a space behind a word, is read alike.

Every other decoder is asked, token by token, what it adds behind another token.

All decoding in Pagetide is the concatenation of these bytes read as UTF-8, so that a text does not depend on how its
tokens were cut into chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Bytes of the tokens of one tokenizer; looked up once per token and kept.

    Attributes:
        size: ids lie in `range(size)`; not every one of them need have a token.
        strips_leading_space: a text that begins with a space loses it (Llama 2 writes one before the first word).
        special_ids: tokens that are no part of the text, such as the end of sequence.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._contents = {i: token.content.encode() for i, token in added.items()}
        self.size = 1 + max([*backend.get_vocab(with_added_tokens=True).values(), -1])
        self._to_bytes, self.strips_leading_space = _reading(_described(backend.decoder), backend)
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; empty for an id without a token."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        # An added token is matched in the raw text, so its content is its text, whatever the decoder makes of it.
        content = self._contents.get(token_id)
        if content is not None:
            return content
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.size else None
        return b"" if token is None else self._to_bytes(token_id, token)


def _described(decoder: Any) -> Mapping[str, Any] | None:
    """A decoder's description as tokenizer.json has it; its pickled state is just that."""
    return None if decoder is None else dict(json.loads(decoder.__getstate__()))


Reading = Callable[[int, str], bytes]


def _reading(decoder: Mapping[str, Any] | None, backend: Backend) -> tuple[Reading, bool]:
    """(token to bytes, strips a leading space) for a decoder's description."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return _byte_level, False
    if kinds and _is_sentencepiece(steps):
        return _SentencePiece(steps), any(map(_strips, steps))
    return _ByBackend(backend), False


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _is_sentencepiece(steps: list[Mapping[str, Any]]) -> bool:
    """Whether all steps are among those that `_SentencePiece` carries out."""
    fused = False
    for step in steps:
        kind = step["type"]
        fused = fused or kind == "Fuse"
        known = kind in ("ByteFallback", "Fuse", "Metaspace", "BPEDecoder")
        known = known or (kind == "Replace" and "String" in step["pattern"])
        # Before the fusing, Strip would strip every token.
        known = known or (kind == "Strip" and fused and step["content"] == " " and step["stop"] == 0)
        if not known:
            return False
    return True


def _strips(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["start"] > 0)


class _SentencePiece:
    """Token to bytes for decoders built of Replace, Metaspace and ByteFallback."""

    def __init__(self, steps: list[Mapping[str, Any]]) -> None:
        self._replacements = [found for step in steps if (found := _replacement(step))]
        self._has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def __call__(self, token_id: int, token: str) -> bytes:
        if self._has_bytes and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """(old, new) for steps that replace text inside a token."""
    match step["type"]:
        case "Replace":
            return step["pattern"]["String"], step["content"]
        case "Metaspace":
            return step["replacement"], " "
        case "BPEDecoder":
            return step["suffix"], " "
    return None


class _ByBackend:
    """Token to bytes for any other decoder: what decoding a pair of tokens adds to decoding the first alone.

    The pair makes the decoder write the space it puts between words.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before = next((i for i in range(256) if self._text(i).isalnum()), None)

    def _text(self, *token_ids: int) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def __call__(self, token_id: int, token: str) -> bytes:
        if self._before is None:
            return self._text(token_id).encode()
        alone, pair = self._text(self._before), self._text(self._before, token_id)
        return (pair[len(alone) :] if pair.startswith(alone) else self._text(token_id)).encode()


def _printable_bytes() -> dict[str, int]:
    """Character to byte, by the table that GPT-2 introduced.

    Printable Latin-1 bytes are written as themselves, the other 68 as the characters from U+0100 on.
    """
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in itself]
    return {chr(b): b for b in itself} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _printable_bytes()


def _byte_level(token_id: int, token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[c] for c in token])
    except KeyError:
        return token.encode()
