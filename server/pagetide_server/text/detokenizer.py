"""From the token ids of one answer to the text that may be given out now."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from ..wire.messages import SamplingParams
from .stop import Match, StopFinder
from .tokenizer import Tokenizer


class Piece(msgspec.Struct, frozen=True):
    """What some new tokens brought.

    Attributes:
        text: text that may be released now.
        tokens_used: how many of the tokens belong to the answer; fewer than given only after a stop string.
        stopped: the stop string that ended the answer, or None.
    """

    text: str
    tokens_used: int
    stopped: str | None = None


class Detokenizer:
    """Text of one answer, piece by piece; the pieces add up to the same text however its tokens were grouped.

    Held back are only the bytes of an unfinished character and the longest end of the text that is the beginning of a
    stop string. Work is proportional to the new tokens.
    """

    __slots__ = (
        "_begun", "_ended", "_finder", "_held", "_keeps_stop", "_length", "_min_tokens", "_open", "_partial",
        "_skipped", "_stops", "_tokenizer", "_tokens",
    )  # fmt: skip

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if params.skip_special_tokens else frozenset[int]()
        self._stops = bool(params.stop)
        self._finder = StopFinder(params.stop)
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._tokens = 0
        # Bytes of a character that has begun in the prompt, and of one that has in the answer.
        self._open = b""
        self._partial = b""
        # Released text, then held text: `_held` is the end of the `_length` characters seen so far.
        self._held = ""
        self._length = 0
        self._ended = False
        self._begun = self._begin(prompt_token_ids)

    def push(self, token_ids: Sequence[int], finished: bool = False, stop_token_id: int | None = None) -> Piece:
        """Take the next tokens of the answer.

        Args:
            token_ids: the new tokens, the stop token included.
            finished: no more tokens come; what was held back is released, an unfinished character as U+FFFD.
            stop_token_id: the last of `token_ids`, if it ended the answer: it is part of the answer's tokens, but not
                of its text (with `include_stop_str_in_output` it is).

        Returns:
            The piece. After one with `stopped` the answer is at its end, and further tokens bring nothing.
        """
        if self._ended:
            return Piece("", 0)
        if not (self._stops or finished):
            # Nothing to look for: this is every token but the last one of most answers.
            return Piece("".join(map(self.text_of, token_ids)), len(token_ids))
        released: list[str] = []
        shown = len(token_ids) - 1 if stop_token_id is not None and not self._keeps_stop else len(token_ids)
        for used, token_id in enumerate(token_ids, start=1):
            text = self.text_of(token_id) if used <= shown else ""
            if match := self._take(text, released):
                return self._end(released, used, match)
        if finished and (match := self._flush(released)):
            return self._end(released, len(token_ids), match)
        return Piece("".join(released), len(token_ids))

    def text_of(self, token_id: int) -> str:
        """Take the next token; the characters that it completes, among which nobody looks for stop strings."""
        data = self._bytes_of(token_id)
        if not data:
            return ""
        if self._open:
            # Bytes of the prompt are used only if the answer goes on with their character.
            if _continues(self._open, data):
                data = self._open + data
            self._open = b""
        if not self._begun:
            self._begun = True
            if self._tokenizer.strips_leading_space:
                data = data.removeprefix(b" ")
        return self._decode(data)

    def _begin(self, prompt: Sequence[int]) -> bool:
        """Ready the decoder for what follows the prompt; whether any text stands before the answer.

        A prompt may end inside a character. The answer then completes it and owns it; the prompt's own text is never
        repeated.
        """
        last: list[bytes] = []
        for token_id in reversed(prompt):
            data = self._bytes_of(token_id)
            if data:
                last.insert(0, data)
            if sum(map(len, last)) >= _LONGEST_CHARACTER:
                break
        self._open = _unfinished(b"".join(last))
        return bool(last)

    def _bytes_of(self, token_id: int) -> bytes:
        return b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)

    def _decode(self, data: bytes, final: bool = False) -> str:
        """The characters that `data` completes; what it only begins is kept for the next call, unless it is `final`."""
        data = self._partial + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._partial = data[used:]
        return text

    def _take(self, text: str, released: list[str]) -> Match | None:
        """Account for one token's text: append to `released` what is free of stop strings; or the match."""
        self._tokens += 1
        return self._release(text, released, self._tokens > self._min_tokens) if text else None

    def _release(self, text: str, released: list[str], may_stop: bool) -> Match | None:
        self._held += text
        self._length += len(text)
        match = self._finder.feed(text, may_stop)
        if match is None:
            # A stop string that stays in the text need not be held back.
            keep = 0 if self._keeps_stop else self._finder.held
            free = len(self._held) - keep
            released.append(self._held[:free])
            self._held = self._held[free:]
        return match

    def _end(self, released: list[str], used: int, match: Match) -> Piece:
        """The last piece of an answer that a stop string ended."""
        self._ended = True
        wanted = match.end if self._keeps_stop else match.start
        released.append(self._held[: wanted - (self._length - len(self._held))])
        self._held = ""
        return Piece("".join(released), used, match.stop)

    def _flush(self, released: list[str]) -> Match | None:
        """Release all that was held back; or the match that an unfinished character, now U+FFFD, completes."""
        self._ended = True
        rest = self._decode(b"", final=True)
        match = self._release(rest, released, self._tokens > self._min_tokens) if rest else None
        if match is None:
            released.append(self._held)
            self._held = ""
        return match


_LONGEST_CHARACTER = 4


def _unfinished(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a UTF-8 character without completing it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _continues(begun: bytes, data: bytes) -> bool:
    """Whether `data` goes on with the character that `begun` begins."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(begun + data[:1])
    except UnicodeDecodeError:
        return False
    return True
