"""`pagetide serve` with the fake core: the real command line, HTTP side and engine process, and no model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pagetide_server.serve as serve
from pagetide_server.api.server import Server
from pagetide_server.text.tokenizer import Tokenizer

HERE = str(Path(__file__).parent)


class FakeServer(Server):
    """A server whose engine runs `fake_core`."""

    def __init__(self, config, keys):
        super().__init__(
            config, keys, "fake_core:create", lambda c: Tokenizer.from_folder(Path(c.tokenizer or c.model))
        )


if __name__ == "__main__":
    # The engine process has to find fake_core.
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    serve.Server = FakeServer
    sys.exit(serve.main())
