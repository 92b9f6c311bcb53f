"""What the loop needs of the parts around it: model, sampler and compiler of structures."""

from __future__ import annotations

from typing import Any, Protocol

from ..wire.messages import Structure, TokenLogprobs
from .sampling.sampled import Sampled
from .sequence import DeviceTokens, Sequence, Step


class Runner(Protocol):
    """The model (model/runner.py)."""

    def execute(self, step: Step, device_tokens: DeviceTokens | None = None) -> Any:
        """Logits of the step: `sampling` [sequences, vocabulary], `prompt` {row: [tokens, vocabulary]}.

        `device_tokens` has the tokens of the step in flight, which the step's sequences do not know yet. May return
        before the device is done.

        Raises:
            DeviceLost: nothing will ever be computed again. Any other error concerns this step only.
        """


class Launched(Protocol):
    """Tokens being chosen (sampling/launched.py)."""

    @property
    def token_ids(self) -> Any:
        """[sequences], a tensor on the device."""

    def wait(self) -> Sampled:
        """The tokens, once they are there."""


class Sampler(Protocol):
    """The choice of tokens (sampling/sampler.py)."""

    def launch(self, logits: Any, sequences: list[Sequence]) -> Launched | None:
        """Begin to sample, without waiting; None where the host must see something first."""

    def sample(self, logits: Any, sequences: list[Sequence]) -> Sampled:
        """One token for each sequence; may change `logits`."""

    def prompt_logprobs(self, logits: Any, next_token_ids: list[int], top: int) -> list[TokenLogprobs]:
        """The log probability of each next token."""


class Grammar(Protocol):
    """A compiled structure (sampling/matcher.py)."""

    def matcher(self) -> Any:
        """State of one answer, at its beginning."""


class Compilation(Protocol):
    """A structure on its way to a grammar (sampling/compiler.py)."""

    def done(self) -> bool:
        """Whether `result` comes at once."""

    def result(self) -> Grammar:
        """The grammar; raises Busy, or a PagetideError that is the client's fault."""


class Compiler(Protocol):
    """Compiles structures beside the loop (sampling/compiler.py)."""

    def compile(self, structure: Structure) -> Compilation:
        """Start to compile; never raises."""

    def close(self) -> None:
        """Drop what waits to be compiled."""
