"""What a router needs to know of a request's body. With no tokenizer here, it hashes text and learns its density.

Blocks are cut from the prompt's canonical content: JSON in one spelling, tools before messages as templates have them,
no closing bracket, so that a conversation that goes on keeps its prefix.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from ..web.errors import ApiError, bad_request
from .routers import Prompt

BLOCK_BYTES = 256
# What lies behind is not told apart: hashing must not hold up everybody else.
_MOST_BYTES = 1 << 20
_TOKENS_PER_BYTE = 0.25
_FADE = 0.95
_USAGE = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')


class Head(msgspec.Struct):
    """The fields of a body that matter here; the decoder skips over the others without building them."""

    model: str | None = None
    stream: Any = None
    cache_salt: Any = None
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()


# What a body that is no JSON, or none that can be read, raises; a number out of range is found last, by the encoder.
NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)

_decode_head = msgspec.json.Decoder(Head).decode


def head_of(body: bytes) -> Head:
    """What a body asks for.

    Raises:
        ApiError: 400: the body is not a JSON object, or `model` is not text.
    """
    try:
        return _decode_head(body)
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise bad_request("`model` must be text", "model") from None
        raise bad_request("The request body must be a JSON object") from None
    except NOT_JSON as error:
        raise not_json(error) from None


def not_json(error: Exception) -> ApiError:
    """400: what a decoder raised (`NOT_JSON`) at a client's body."""
    why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    return bad_request(f"The request body is not JSON: {why}")


class Density:
    """Tokens in a byte of text, learned from what replicas count."""

    def __init__(self) -> None:
        # The guess counts as much as a page of text.
        self._tokens, self._bytes = 1000.0 * _TOKENS_PER_BYTE, 1000.0

    @property
    def tokens_per_byte(self) -> float:
        """The mean of the last prompts, long ones counting more."""
        return self._tokens / self._bytes

    def learn(self, size: int, answer: bytes) -> None:
        """Take over the `usage` of an answer, if it has one, to a prompt of `size` bytes."""
        found = _USAGE.search(answer, max(0, len(answer) - 4096))
        if found and size:
            self._tokens = self._tokens * _FADE + int(found[1])
            self._bytes = self._bytes * _FADE + size


def read(head: Head, salt: str, session: str | None, density: Density) -> tuple[Prompt, int]:
    """The prompt of a body, and its size in bytes where its tokens are estimated from that (else 0).

    Raises:
        ApiError: 400: the prompt is not JSON.
    """
    try:
        content, ids = _content(head)
    except NOT_JSON as error:
        raise not_json(error) from None
    tokens = ids or len(content) * density.tokens_per_byte
    per_block = BLOCK_BYTES * tokens / max(1, len(content))
    blocks = chain(content[:_MOST_BYTES], salt.encode())
    return Prompt(blocks, tokens, max(per_block, 1e-6), session, head.stream is True), 0 if ids else len(content)


def chain(content: bytes, seed: bytes) -> tuple[int, ...]:
    """A hash for each whole block, of it and all before it."""
    last, out = seed, []
    for at in range(0, len(content) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hashlib.blake2b(last + content[at : at + BLOCK_BYTES], digest_size=8).digest()
        out.append(int.from_bytes(last, "little"))
    return tuple(out)


def _content(head: Head) -> tuple[bytes, int]:
    """Canonical content, and how many tokens it is where they are given as ids."""
    if head.messages:
        tools = _canonical(head.tools) if head.tools else b""
        return tools + _canonical(head.messages).removesuffix(b"]"), 0
    content = _canonical(head.prompt) if head.prompt else b""
    if content[:1] == b"[" and content[1:2].isdigit():
        return content.removesuffix(b"]"), content.count(b",") + 1
    return content.removesuffix(b'"'), 0


def _canonical(raw: msgspec.Raw) -> bytes:
    text = bytes(raw)
    if len(text) > _MOST_BYTES:
        return text
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")


def rewrite(body: bytes, changes: dict[str, Any]) -> bytes:
    """The body with some fields set; all others stay as the client wrote them.

    Raises:
        ApiError: 400: the body is not JSON.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON as error:
        raise not_json(error) from None
    return msgspec.json.encode({**fields, **changes})
