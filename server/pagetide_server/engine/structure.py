"""Structured answers: from a JSON schema, a regular expression, a choice or a grammar to the tokens that may come next.

The work is llguidance's: it walks the grammar and the vocabulary together, and bounds the effort of every step by
itself. A grammar is compiled once, away from the step loop, and kept; every sequence has its own matcher.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from pagetide_spec.errors import PagetideError

from .messages import Structure

# A long regular expression costs time in every step; other structures mostly when they are compiled.
MAX_BYTES = {"regex": 1 << 15}
MAX_OTHER_BYTES = 1 << 18
MAX_COMPILE_SECONDS = 20.0
_KEPT_GRAMMARS = 256
_THREADS = 2
# More alternatives at one place than the library allows by itself: schemas of thousands of properties have them.
_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000, verbose_errors=False)


class StructureError(PagetideError):
    """A structure cannot be followed: it is wrong, unsupported or too large. The client must change it."""


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
            eos_token_ids: tokens that end an answer, beside the tokenizer's own.
        """
        self._tokenizer = tokenizer
        self._eos = sorted(frozenset(eos_token_ids) | tokenizer.eos_token_ids)
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="structure")
        self._grammars: collections.OrderedDict[Structure, Compilation] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._tokens: llguidance.LLTokenizer | None = None

    def compile(self, structure: Structure) -> Compilation:
        """Start to compile `structure`, or find it under way or done. Never raises: see `Compilation.poll`."""
        known = self._grammars.get(structure)
        if known is None or known.failed():
            known = self._grammars[structure] = Compilation(self._pool.submit(self._build, structure))
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
        """Raises StructureError."""
        kind = structure.kind
        size, most = len(structure.value.encode(errors="surrogatepass")), MAX_BYTES.get(kind, MAX_OTHER_BYTES)
        if size > most:
            raise StructureError(f"{kind}: is {size} bytes long; at most {most} are accepted")
        text = _guarded(kind, lambda: _GRAMMAR_TEXT[kind](structure.value))
        tokens = self._vocabulary()
        matcher = _guarded(kind, lambda: llguidance.LLMatcher(tokens, text, log_level=0, limits=_LIMITS))
        if matcher.is_error():
            raise StructureError(f"{kind}: {_one_line(matcher.get_error())}")
        first_step = matcher.deep_copy()
        first_step.compute_bitmask()
        if first_step.is_error():
            raise StructureError(f"{kind}: no answer can have this structure, or none that is found in time")
        return Grammar(matcher, tokens.vocab_size, frozenset(self._eos))

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokens is None:
                if not self._eos:
                    raise StructureError("the model names no end token, so that no structured answer could end")
                wrapper = llguidance.TokenizerWrapper(_Tokens(self._tokenizer, self._eos[0]))
                self._tokens = llguidance.LLTokenizer(wrapper, eos_token=self._eos)
            return self._tokens


class Compilation:
    """A grammar being compiled."""

    def __init__(self, future: concurrent.futures.Future[Grammar]) -> None:
        self._future = future
        self._started = time.monotonic()

    def poll(self) -> Grammar | None:
        """The grammar, or None while it is not ready.

        Raises:
            StructureError: it cannot be compiled, or takes too long.
        """
        if not self.is_settled():
            return None
        if not self._future.done():
            raise _too_slow()
        return self._future.result()

    def is_settled(self) -> bool:
        """Whether `poll` would now give a grammar or raise."""
        return self._future.done() or time.monotonic() - self._started > MAX_COMPILE_SECONDS

    def wait(self) -> Grammar:
        """The grammar, when it is ready. Raises like `poll`."""
        try:
            return self._future.result(MAX_COMPILE_SECONDS)
        except TimeoutError:
            raise StructureError(
                f"the answer's structure takes more than {MAX_COMPILE_SECONDS:g} s to compile"
            ) from None

    def failed(self) -> bool:
        """Whether it is done without a grammar."""
        return self._future.cancelled() or (self._future.done() and self._future.exception() is not None)


class Grammar:
    """A compiled structure."""

    def __init__(self, fresh: llguidance.LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._fresh, self._vocab_size, self._eos_token_ids = fresh, vocab_size, eos_token_ids

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an answer."""
        return Matcher(self._fresh.deep_copy(), self._vocab_size, self._eos_token_ids)


class Matcher:
    """Where one answer stands in its structure.

    Attributes:
        inner: llguidance's own matcher.
        vocab_size: tokens that masks speak of.
    """

    def __init__(self, inner: llguidance.LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.inner = inner
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._ended = False

    def accept(self, token_id: int) -> bool:
        """Go on with the chosen token; False if the structure does not allow it. What follows the end is ignored."""
        if self._ended:
            return True
        if token_id in self._eos_token_ids and self.inner.is_accepting():
            self._ended = True
            return True
        return bool(self.inner.consume_token(token_id))

    def is_finished(self) -> bool:
        """Whether the answer is complete and nothing but its end may follow."""
        return self._ended or bool(self.inner.is_stopped() and not self.inner.is_error())

    def is_complete(self) -> bool:
        """Whether the answer could end here."""
        return self._ended or bool(self.inner.is_accepting())

    @property
    def error(self) -> str | None:
        """Why the matcher cannot go on, or None. Known after `MaskFiller.fill` or `accept`."""
        return _one_line(self.inner.get_error()) if self.inner.is_error() else None


class MaskFiller:
    """Computes the masks of several matchers at once, on several cores."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor()

    def fill(self, matchers: list[Matcher]) -> NDArray[np.int32]:
        """Bit mask of the allowed tokens of each: [len(matchers), ceil(vocabulary / 32)] int32, lowest bit first.

        The vocabulary is the tokenizer's; a model's logits may be wider, and none of their further ids is allowed. At
        the end of a structure the end tokens are all that is allowed.
        """
        size = -(-matchers[0].vocab_size // 32)
        masks: NDArray[np.int32] = np.zeros((len(matchers), size), dtype=np.int32)
        rows = [(m.inner, i) for i, m in enumerate(matchers)]
        llguidance.numpy.fill_next_token_bitmask_par(self._executor, rows, masks)
        return masks


class _Tokens:
    """A tokenizer as llguidance's TokenizerWrapper reads it."""

    def __init__(self, tokenizer: Vocabulary, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._by_bytes = {data: i for i, data in enumerate(self.tokens) if data and i not in tokenizer.special_ids}
        self._longest = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly those of `text`; the library relies on it where a grammar forces a text.

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
        """The last of `ids` that together are `data`, or None."""
        start, missing = len(ids), len(data)
        while start and missing > 0:
            start -= 1
            missing -= len(self.tokens[ids[start]])
        return ids[start:] if b"".join(self.tokens[i] for i in ids[start:]) == data else None

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


def _guarded(kind: str, work: Callable[[], Any]) -> Any:
    """The result of `work`; whatever the library or Python makes of a bad grammar is a StructureError."""
    try:
        return work()
    except StructureError:
        raise
    # A panic inside the library arrives as an exception that is not an Exception.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise StructureError(f"{kind}: {_one_line(str(error) or type(error).__name__)}") from error


def _too_slow() -> StructureError:
    return StructureError(f"the answer's structure takes more than {MAX_COMPILE_SECONDS:g} s to compile")


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= 300 else text[:297] + "..."


def _json_schema(value: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_json_schema(value, overrides=_JSON_OPTIONS))


_JSON_OPTIONS: Any = {
    # oneOf is followed as anyOf: a token mask cannot count how many branches a finished document has.
    "coerce_one_of": True,
    # Any layout, but no endless white space, in which a small model loses itself.
    "whitespace_pattern": r"[ \t\n\r]{0,64}",
}


def _regex(value: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(value))


def _choice(value: str) -> str:
    choices = json.loads(value)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise StructureError("choice: must be a list of texts, none of them empty")
    # One terminal, so that thousands of choices are states of one automaton. Its strings are JSON strings.
    alternatives = " | ".join(map(json.dumps, choices))
    return str(llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives}"))


_RULE_MARKS = re.compile(r"^[ \t]*[?!]+(?=[a-z_]\w*(\.\d+)?[ \t]*:)", re.MULTILINE)


def _grammar(value: str) -> str:
    """Lark as it is; EBNF as llama.cpp writes it (`root ::= ...`) is translated."""
    if "::=" in value:
        return str(llguidance.grammar_from("gbnf", value))
    # `?rule` and `!rule` shape Lark's parse tree only.
    return str(llguidance.LLMatcher.grammar_from_lark(_RULE_MARKS.sub("", value)))


_GRAMMAR_TEXT: dict[str, Callable[[str], str]] = {
    "json": _json_schema,
    "json_object": lambda value: _json_schema('{"type": "object"}'),
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
