"""The data plane: one process tree that loads a model and answers the OpenAI API.

`engine/` decides and steps (blocks, scheduler, batch, sampler, loop), `model/` loads and runs networks, `text/` turns
text into tokens and back, `api/` speaks HTTP. The API process imports no torch; the engine process does all of it.
"""

from typing import Any

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Lazily, so that the torch-free parts can be used alone.
    if name == "SamplingParams":
        from .engine.messages import SamplingParams

        return SamplingParams
    if name == "LLM":
        from .llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
