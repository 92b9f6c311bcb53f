"""The data plane: one process tree that loads a model and answers the OpenAI API.

From the top down: `api/` speaks HTTP, `process/` runs the engine apart from it, `model/` loads and runs networks,
`engine/` decides and steps (blocks, scheduler, sampling, loop), `text/` turns text into tokens and back, `checkpoint/`
finds the model's files, `wire/` is what the two processes say to each other. `factory.py` joins them to an engine.
The API process imports no torch; the engine process does all of it.
"""

from typing import Any

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Lazily, so that the torch-free parts can be used alone.
    if name == "SamplingParams":
        from .wire.messages import SamplingParams

        return SamplingParams
    if name == "LLM":
        from .llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
