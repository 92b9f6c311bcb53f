"""Structured answers: from a JSON schema, a regular expression, a choice or a grammar to the tokens that may come next.

The work is llguidance's: it walks the grammar and the vocabulary together, and bounds the effort of every step by
itself. A grammar is compiled once, away from the step loop, and kept; every sequence has its own matcher.
"""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import llguidance

from pagetide_spec.errors import PagetideError

from ...wire.messages import Structure
from ..faults import Busy
from .grammars import StructureError, grammar_text, guarded, one_line, parts
from .matcher import Grammar, Matcher

__all__ = ["Compilation", "Grammar", "Matcher", "StructureCompiler", "StructureError"]

MAX_COMPILE_SECONDS = 20.0
_KEPT_GRAMMARS = 256
_THREADS = 2
# More alternatives at one place than the library allows by itself: schemas of thousands of properties have them.
_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000, verbose_errors=False)


class Vocabulary(Protocol):
    """What the compiler needs of a tokenizer."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text."""


class StructureCompiler:
    """Compiles structures in threads of its own. Equal structures are compiled once."""

    def __init__(self, tokenizer: Vocabulary, eos_token_ids: Iterable[int] = ()) -> None:
        """Compiler for one tokenizer.

        Args:
            tokenizer: whose tokens the answers consist of.
            eos_token_ids: tokens that end an answer; the tokenizer's own if there are none.
        """
        self._tokenizer = tokenizer
        ends = frozenset(eos_token_ids) or tokenizer.eos_token_ids
        self._eos = sorted(i for i in ends if i < tokenizer.vocab_size)
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="structure")
        self._grammars: collections.OrderedDict[Structure, Compilation] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._tokens: llguidance.LLTokenizer | None = None

    def compile(self, structure: Structure) -> Compilation:
        """Start to compile `structure`, or find it under way or done. Never raises: see `Compilation.result`."""
        known = self._grammars.get(structure)
        if known is None or known.failed():
            known = self._grammars[structure] = Compilation(self._pool, lambda: self._build(structure))
        known.renew()
        self._grammars.move_to_end(structure)
        while len(self._grammars) > _KEPT_GRAMMARS:
            self._grammars.popitem(last=False)
        return known

    def warm_up(self) -> None:
        """Prepare the vocabulary now, in a thread: about a second for 262,144 tokens, which the first request saves."""
        self._pool.submit(self._vocabulary)

    def close(self) -> None:
        """Drop what waits to be compiled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _build(self, structure: Structure) -> Grammar:
        """Raises StructureError; of several functions that may be called, it names the one at fault."""
        try:
            return self._build_whole(structure)
        except StructureError:
            for name, part in parts(structure):
                try:
                    self._build_whole(part)
                except StructureError as error:
                    raise StructureError(f"the arguments of {name}: {error}") from None
            raise

    def _build_whole(self, structure: Structure) -> Grammar:
        text = grammar_text(structure)
        return guarded(structure.kind, lambda: self._grammar(structure.kind, text))

    def _grammar(self, kind: str, text: str) -> Grammar:
        tokens = self._vocabulary()
        matcher = llguidance.LLMatcher(tokens, text, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise StructureError(f"{kind}: {one_line(matcher.get_error())}")
        first_step = matcher.deep_copy()
        first_step.compute_bitmask()
        if first_step.is_error():
            raise StructureError(f"{kind}: no answer can have this structure, or none that is found in time")
        return Grammar(matcher, tokens.vocab_size, frozenset(self._eos))

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokens is None:
                if not self._eos:
                    raise StructureError("the model names no end token, so that no structured answer could finish")
                wrapper = llguidance.TokenizerWrapper(_Tokens(self._tokenizer, self._eos[0]))
                self._tokens = llguidance.LLTokenizer(wrapper, eos_token=self._eos)
            return self._tokens


class Compilation:
    """A grammar being compiled: a future that gives up `MAX_COMPILE_SECONDS` after the work began, or did not begin."""

    def __init__(self, pool: concurrent.futures.Executor, build: Callable[[], Grammar]) -> None:
        self._build = build
        # When it was asked for, then when its work began: until then others keep the threads busy.
        self._since, self._begun = time.monotonic(), False
        self._given_up: PagetideError | None = None
        self._future = pool.submit(self._work)

    def done(self) -> bool:
        """Whether `result` comes at once."""
        if self._given_up is None and not self._future.done() and self._left() <= 0:
            self._given_up = self._too_late()
        return self._given_up is not None or self._future.done()

    def result(self) -> Grammar:
        """The grammar; waits for it.

        Raises:
            StructureError: it cannot be compiled, or takes too long.
            Busy: other structures take so long that its turn did not come.
        """
        while not self.done():
            concurrent.futures.wait([self._future], max(0.0, self._left()))
        if self._given_up is not None:
            raise self._given_up
        return self._future.result()

    def failed(self) -> bool:
        """Whether it is done without a grammar."""
        return self._future.cancelled() or (self._future.done() and self._future.exception() is not None)

    def renew(self) -> None:
        """Wait for it on behalf of one more request, although an earlier one found the threads busy for too long."""
        if isinstance(self._given_up, Busy):
            self._given_up = None
            self._since = self._since if self._begun else time.monotonic()

    def _work(self) -> Grammar:
        self._since, self._begun = time.monotonic(), True
        return self._build()

    def _too_late(self) -> PagetideError:
        if not self._begun:
            return Busy("the structures of other requests are being compiled; try again later")
        return StructureError(f"the answer's structure takes more than {MAX_COMPILE_SECONDS:g} s to compile")

    def _left(self) -> float:
        return self._since + MAX_COMPILE_SECONDS - time.monotonic()


class _Tokens:
    """A tokenizer as llguidance's TokenizerWrapper reads it."""

    def __init__(self, tokenizer: Vocabulary, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._by_bytes = {data: i for i, data in enumerate(self.tokens) if data and i not in tokenizer.special_ids}
        self._special = tokenizer.special_ids
        self._longest = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly those of `text`; the library relies on it where a grammar forces a text.

        Special tokens are never among them: a text that spells one, such as `</s>`, is written with ordinary ones.
        A tokenizer that puts a space before its texts, or changes them, does not give such tokens by itself.
        """
        data = text.encode()
        # Behind a character that no token goes on from, the space is written elsewhere.
        for lead in ("", "\x02"):
            ids = self._tokenizer.encode(lead + text, add_special_tokens=False)
            if (found := self._last(ids, data)) is not None:
                return found
        return self._longest_matches(data)

    def _last(self, ids: list[int], data: bytes) -> list[int] | None:
        """The last of `ids` that together are `data`, or None; also if a special token is among them."""
        start, missing = len(ids), len(data)
        while start and missing > 0:
            start -= 1
            missing -= len(self.tokens[ids[start]])
        found = ids[start:]
        exact = b"".join(self.tokens[i] for i in found) == data and self._special.isdisjoint(found)
        return found if exact else None

    def _longest_matches(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((e for e in ends if data[start:e] in self._by_bytes), None)
            if end is None:
                raise StructureError(f"the model has no token for the bytes {data[start : start + 1]!r}")
            ids.append(self._by_bytes[data[start:end]])
            start = end
        return ids
