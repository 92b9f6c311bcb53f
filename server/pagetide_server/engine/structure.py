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

MAX_TEXT_BYTES = 1 << 20
MAX_COMPILE_SECONDS = 20.0
_KEPT_GRAMMARS = 256
_THREADS = 2


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
        size = len(structure.value.encode(errors="surrogatepass"))
        if size > MAX_TEXT_BYTES:
            raise StructureError(f"{structure.kind}: {size} bytes; at most {MAX_TEXT_BYTES} are accepted")
        text = _guarded(structure.kind, lambda: _GRAMMAR_TEXT[structure.kind](structure.value))
        tokens = self._vocabulary()
        matcher = _guarded(structure.kind, lambda: llguidance.LLMatcher(tokens, text, log_level=0))
        if matcher.is_error():
            raise StructureError(f"{structure.kind}: {_one_line(matcher.get_error())}")
        return Grammar(matcher, frozenset(self._eos))

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

    def __init__(self, fresh: llguidance.LLMatcher, eos_token_ids: frozenset[int]) -> None:
        self._fresh = fresh
        self._eos_token_ids = eos_token_ids

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an answer."""
        return Matcher(self._fresh.deep_copy(), self._eos_token_ids)


class Matcher:
    """Where one answer stands in its structure."""

    def __init__(self, inner: llguidance.LLMatcher, eos_token_ids: frozenset[int]) -> None:
        self._inner = inner
        self._eos_token_ids = eos_token_ids
        self._ended = False

    def accept(self, token_id: int) -> bool:
        """Go on with the chosen token; False if the structure does not allow it. What follows the end is ignored."""
        if self._ended:
            return True
        if token_id in self._eos_token_ids and self._inner.is_accepting():
            self._ended = True
            return True
        return bool(self._inner.consume_token(token_id))

    def is_finished(self) -> bool:
        """Whether the answer is complete and nothing but its end may follow."""
        return self._ended or bool(self._inner.is_stopped())

    def is_complete(self) -> bool:
        """Whether the answer could end here."""
        return self._ended or bool(self._inner.is_accepting())

    @property
    def error(self) -> str | None:
        """Why the matcher cannot go on, or None. Known after `fill_masks` or `accept`."""
        return _one_line(self._inner.get_error()) if self._inner.is_error() else None


class MaskFiller:
    """Computes the masks of several matchers at once, on several cores."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor()

    def fill(self, matchers: list[Matcher], vocab_size: int) -> NDArray[np.int32]:
        """Bit mask of the allowed tokens of each: [len(matchers), ceil(vocab_size / 32)] int32, lowest bit first.

        At the end of a structure the end tokens are all that is allowed. Ids outside the tokenizer's vocabulary, which
        a model's logits may have, never are.
        """
        masks: NDArray[np.int32] = np.zeros((len(matchers), -(-vocab_size // 32)), dtype=np.int32)
        rows = [(m._inner, i) for i, m in enumerate(matchers)]
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

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


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
    return str(llguidance.LLMatcher.grammar_from_json_schema(value))


def _regex(value: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(value))


def _choice(value: str) -> str:
    choices = json.loads(value)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise StructureError("choice: must be a list of texts, none of them empty")
    # The strings of the grammar language are JSON strings.
    return str(llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices))))


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
