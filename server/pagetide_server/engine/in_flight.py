"""A step in flight (async scheduling): launched on the device, its tokens not known to the host yet."""

from __future__ import annotations

import dataclasses

from .faults import DeviceLost
from .protocols import Launched
from .sampling.sampled import Sampled
from .sequence import DeviceTokens, Sequence, Step


@dataclasses.dataclass(frozen=True)
class InFlightStep:
    """What the device computes: a step, and a token for each of `step.sampling()`, which are `sequences`."""

    step: Step
    sequences: list[Sequence]
    tokens: Launched

    def device_tokens(self) -> DeviceTokens:
        """The tokens, for a step that needs them before the host has them."""
        return DeviceTokens(self.tokens.token_ids, {s: i for i, s in enumerate(self.sequences)})

    def wait(self) -> Sampled:
        """The tokens.

        Raises:
            DeviceLost: they will never come.
        """
        try:
            return self.tokens.wait()
        except Exception as error:  # nothing is computed any more that could be at fault
            raise DeviceLost(f"the device computes nothing any more: {error}") from error
