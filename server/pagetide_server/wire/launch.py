"""How the engine process is started, and what its exit codes say. Shared by both sides; imports no torch."""

from __future__ import annotations

from typing import Any

import msgspec

DEFAULT_CORE = "pagetide_server.factory:create_core"

# Exit codes of the engine process, and of the server that ends because of it.
EXIT_START = 3  # the model could not be loaded
EXIT_ENGINE = 4  # the engine failed, was killed, or did not go on with its requests, while it served


class Launch(msgspec.Struct, kw_only=True):
    """What the engine process reads from its standard input, as one JSON document.

    `core` names what makes the core, as "module:attribute". `connection` is the inherited descriptor of a stream
    socket: requests come from it, and answers go to it.
    """

    config: dict[str, Any]
    core: str = DEFAULT_CORE
    connection: int
    parent: int
