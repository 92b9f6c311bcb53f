"""Where answers stand in their structures, and which tokens may come next."""

from __future__ import annotations

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from ..faults import StructureFault
from .grammars import one_line


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

    @property
    def fault(self) -> StructureFault | None:
        """Why the matcher cannot go on: its structure is too large to follow, or has no end. None: it can.

        Known after `MaskFiller.fill` or `accept`.
        """
        if not self.inner.is_error():
            return None
        return StructureFault(f"the answer's structure: {one_line(self.inner.get_error())}")


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
