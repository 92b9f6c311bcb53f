"""Which parsers a chat answer goes through."""

from __future__ import annotations

from collections.abc import Callable

from pagetide_spec.config import EngineConfig

from ..engine.messages import SamplingParams
from .parts import Splitter
from .prompts import Prompter
from .protocol import ChatRequest


def splitter_factory(config: EngineConfig, prompter: Prompter, request: ChatRequest) -> Callable[[], Splitter]:
    """What makes the splitter of each answer of a request."""
    return lambda: Splitter([])


def tool_structure(request: ChatRequest, params: SamplingParams) -> SamplingParams:
    """The parameters, with the form that a forced tool call must have."""
    return params
