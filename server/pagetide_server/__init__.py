"""The data plane: one process tree that loads a model and answers the OpenAI API.

From the top down: `api/` speaks HTTP, `process/` runs the engine apart from it, `model/` loads and runs networks,
`engine/` decides and steps (blocks, scheduler, sampling, loop), `text/` turns text into tokens and back, `checkpoint/`
finds the model's files, `wire/` has the messages between the two processes. `factory.py` joins them to an engine.
The API process imports no torch; the engine process does all of it.
Does not belong here: several replicas, Kubernetes, routing (`pagetide_operator`, `pagetide_gateway`).
"""

import importlib
from typing import Any

__all__ = ["LLM", "GenerationError", "PagetideError", "SamplingParams", "SettingError", "Structure"]

# Where each lies. They are imported lazily, so that the torch-free parts can be used alone.
_HOMES = {
    "LLM": "pagetide_server.llm",
    "GenerationError": "pagetide_server.results",
    "PagetideError": "pagetide_spec.errors",
    "SamplingParams": "pagetide_server.wire.messages",
    "SettingError": "pagetide_spec.errors",
    "Structure": "pagetide_server.wire.messages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
