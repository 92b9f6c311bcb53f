"""Sampler: from a step's logits to one token a sequence, each by its own request's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Container

import torch

from pagetide_kernels.dispatch import choose

from ...wire.messages import TokenLogprobs
from ..faults import RequestFault
from ..sequence import Sequence
from .greedy import greedy, is_greedy
from .launched import Choosing, Chosen
from .lazy import LazyLogits
from .logprobs import token_logprobs
from .masks import mask_logits
from .noise import Noise
from .op_draw import draw_by_cpp, draw_by_triton
from .penalties import adjust, changes_logits
from .sampled import NO_TOKEN, Sampled
from .torch_draw import draw_by_torch

# (logits, drawn, noise) to a token for each row (int64) and its largest logit (float32), on the device of the logits.
# These are [rows, vocabulary] float32, contiguous, and not changed; `drawn` is row to sequence, other rows are greedy.
# Where the largest logit is not finite (NaN, if the row holds one), the token means nothing, but is in the vocabulary.
# All ways draw the same, but for tokens within rounding of each other.
Way = Callable[[torch.Tensor, dict[int, Sequence], Noise], tuple[torch.Tensor, torch.Tensor]]
WAYS: dict[str, Way] = {"cpp": draw_by_cpp, "triton": draw_by_triton, "torch": draw_by_torch}


class Sampler:
    """Chooses tokens for mixed batches. Keeps no state of any sequence: each choice depends on its row alone."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
    ) -> None:
        """Sampler for one engine.

        Args:
            vocab_size: width of the logits.
            device: where they lie; all the work is done there.
            eos_token_ids: tokens that end an answer, which min_tokens holds off.
            seed: `EngineConfig.seed`, for requests that bring none; None takes one from the system.
        """
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = torch.device(device)
        self._noise = Noise(vocab_size, self._device, seed)
        self._ops = choose(self._device).name

    def warm_up(self) -> None:
        """Make the tables now (see noise.py) that the first sampled token would wait for."""
        _ = self._noise.tables

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor | LazyLogits, sequences: list[Sequence]) -> Choosing | Chosen | None:
        """Begin to choose one token for each sequence, as `sample` does, and do not wait for the device.

        None where a request asks for what the host must look at first, or where no op of this device can do it.
        """
        if not all(map(_is_plain, sequences)):
            return None
        if self._ops == "triton":
            assert isinstance(logits, torch.Tensor)  # on a GPU
            return Choosing(*self._choose(logits, sequences), lambda row, top: _reason(top, sequences[row]))
        return Chosen.of(self.sample(logits, sequences)) if self._device.type == "cpu" else None

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor | LazyLogits, sequences: list[Sequence]) -> Sampled:
        """One token for each sequence.

        A sequence with a `matcher` gets a token that its structure allows; the matcher is not advanced.

        Args:
            logits: [len(sequences), vocab_size] float32; overwritten where requests change them. Or what they can be
                computed from.
            sequences: whose next tokens are wanted, in row order.

        Raises:
            ValueError: the logits have another shape.
        """
        if logits.shape != (len(sequences), self._vocab_size):
            raise ValueError(f"logits {tuple(logits.shape)}, want {(len(sequences), self._vocab_size)}")
        if not sequences:
            return Sampled([], [], {})
        if isinstance(logits, LazyLogits):
            return self._sample_lazy(logits, sequences)
        # Rows that share memory (siblings) must not be changed together.
        logits = logits.contiguous()
        raw = _RawRows(logits, sequences)
        faults = self._change(logits, sequences)
        tokens, tops = (chosen.tolist() for chosen in self._choose(logits, sequences))
        errors: dict[int, object] = {
            row: _reason(top, sequences[row]) for row, top in enumerate(tops) if not math.isfinite(top)
        }
        errors |= faults
        logprobs = raw.logprobs(tokens, errors)
        return Sampled([NO_TOKEN if row in errors else t for row, t in enumerate(tokens)], logprobs, errors)

    def _choose(self, logits: torch.Tensor, sequences: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and largest logits, as a `Way` gives them; Triton's are not waited for."""
        drawn = {row: s for row, s in enumerate(sequences) if not is_greedy(s.params)}
        return WAYS[self._ops](logits, drawn, self._noise) if drawn else greedy(logits)

    def _sample_lazy(self, logits: LazyLogits, sequences: list[Sequence]) -> Sampled:
        """`sample`, where rows that want nothing but their most probable token do without their logits."""
        simple = [row for row, s in enumerate(sequences) if is_greedy(s.params) and _is_plain(s)]
        others = sorted(set(range(len(sequences))).difference(simple))
        sampled = Sampled([NO_TOKEN] * len(sequences), [None] * len(sequences), {})
        if simple:
            for row, token, top in zip(simple, *logits[simple].argmax(), strict=True):
                if math.isfinite(top):
                    sampled.token_ids[row] = token
                else:
                    sampled.errors[row] = _reason(top, sequences[row])
        if others:
            sampled.place(others, self.sample(logits[others].written(), [sequences[row] for row in others]))
        return sampled

    def prompt_logprobs(self, logits: torch.Tensor, next_token_ids: list[int], top: int) -> list[TokenLogprobs]:
        """Log probabilities of prompt tokens.

        Args:
            logits: [count, vocab_size] float32 at `count` positions of a prompt.
            next_token_ids: the prompt's token behind each of those positions.
            top: number of most probable tokens to list.
        """
        return token_logprobs(logits, next_token_ids, top)

    def _change(self, logits: torch.Tensor, sequences: list[Sequence]) -> dict[int, RequestFault]:
        """Make all changes that requests ask for; row to what went wrong."""
        # A finished structure has no other continuation than the end, and nothing that a request asks for holds it off.
        finished = {row for row, s in enumerate(sequences) if s.matcher is not None and s.matcher.is_finished()}
        if changed := [(r, s) for r, s in enumerate(sequences) if changes_logits(s.params) and r not in finished]:
            adjust(logits, changed, self._eos_token_ids)
        structured = [(row, s.matcher) for row, s in enumerate(sequences) if s.matcher is not None]
        return mask_logits(logits, structured) if structured else {}


def _is_plain(sequence: Sequence) -> bool:
    """Whether its token depends on logits, parameters and position alone, and nothing else of it is reported."""
    params = sequence.params
    return params.structure is None and params.logprobs is None and not changes_logits(params)


def _reason(top: float, sequence: Sequence) -> str | RequestFault:
    if math.isnan(top):
        return "the model computed NaN instead of logits for this request"
    if top > 0:
        return "the model computed an infinite logit for this request"
    if sequence.matcher is None and not changes_logits(sequence.params):
        return "the model computed a logit of minus infinity for every token of this request"
    return RequestFault(
        "no token may follow: what the request rules out (logit_bias, bad_words, allowed_token_ids, ...) and its "
        "structure leave none; change one of them"
    )


class _RawRows:
    """The logits, as the model computed them, of the rows that asked for log probabilities."""

    def __init__(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        self._count = len(sequences)
        self._asked = {r: s.params.logprobs for r, s in enumerate(sequences) if s.params.logprobs is not None}
        changed = any(sequences[r].matcher is not None or changes_logits(sequences[r].params) for r in self._asked)
        # Most often nothing will be changed, and no copy is needed.
        everything = len(self._asked) == self._count and not changed
        self._logits = logits if everything else logits[list(self._asked)]

    def logprobs(self, tokens: list[int], errors: Container[int]) -> list[TokenLogprobs | None]:
        """By row, for `tokens`."""
        result: list[TokenLogprobs | None] = [None] * self._count
        if not self._asked:
            return result
        top = max(self._asked.values())
        found = token_logprobs(self._logits, [tokens[r] for r in self._asked], top)
        for entry, (row, wanted) in zip(found, self._asked.items(), strict=True):
            entry.top_ids, entry.top_logprobs = entry.top_ids[:wanted], entry.top_logprobs[:wanted]
            result[row] = None if row in errors else entry
        return result
