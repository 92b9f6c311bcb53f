"""What all routes share: settings, engine, tokenizer, metrics, life cycle."""

from __future__ import annotations

import dataclasses
import time
import uuid

from fastapi import Request

from pagetide_spec.config import EngineConfig

from ..checkpoint.files import locate
from ..process.client import EngineClient
from .errors import ApiError, unavailable
from .lifecycle import Lifecycle
from .metrics import ServerMetrics
from .prompts import Prompter
from .tracing import Tracing
from .validation import Limits


@dataclasses.dataclass
class Context:
    """One server's state. `prompter` and `limits` come with the engine's readiness."""

    config: EngineConfig
    engine: EngineClient
    metrics: ServerMetrics
    lifecycle: Lifecycle
    model_name: str
    version: str
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    prompter: Prompter | None = None
    tracing: Tracing | None = None

    def serving(self) -> Prompter:
        """The prompter, if the server takes requests now; looks at what the engine has said meanwhile.

        Raises:
            ApiError: 503 while loading, draining, or without a working engine.
        """
        if (reason := self.why_unready()) is not None:
            raise unavailable(reason)
        if self.prompter is None:
            raise unavailable("the model is still loading")
        return self.prompter

    def why_unready(self) -> str | None:
        """Why no requests are taken, or None; looks at what the engine has said meanwhile."""
        self.engine.refresh()
        return self.lifecycle.why_closed() or self.engine.why_unhealthy()

    @property
    def limits(self) -> Limits:
        """What requests may ask for."""
        ready = self.engine.ready
        return Limits(ready.max_model_len, ready.vocab_size, self.config.max_n)

    def check_model(self, name: str | None) -> None:
        """Refuse another model than the one served; none at all means that one.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self.model_name:
            message = f"the model {name[:200]!r} does not exist; this server has {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")


def served_name(config: EngineConfig) -> str:
    """The name that clients give: as set, or the hub id, or the last part of a path."""
    if config.served_model_name:
        return config.served_model_name
    path = locate(config.model)
    if path is None:
        return config.model
    path = path.resolve()
    return path.name if path.is_dir() else path.stem


def context_of(request: Request) -> Context:
    """The server's state, from a request."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


def new_id(prefix: str, wanted: str | None = None) -> str:
    """An id such as cmpl-0f3a..., fresh or with the rest that the client wants."""
    return f"{prefix}-{wanted or uuid.uuid4().hex}"
