"""`python -m pagetide_server` with the fake core: the real command line, HTTP side and engine process, and no model."""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire import launch

HERE = str(Path(__file__).parent)


def load_tokenizer(config):
    """The tokenizer in the folder that the settings name; after FAKE_TOKENIZER_S seconds, as if it were fetched."""
    time.sleep(float(os.environ.get("FAKE_TOKENIZER_S", "0")))
    return Tokenizer.from_folder(Path(config.tokenizer or config.model))


if __name__ == "__main__":
    # The engine process has to find fake_core.
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    # Before the server is imported, whose defaults they are.
    launch.DEFAULT_CORE, Tokenizer.load = "fake_core:create", load_tokenizer
    runpy.run_module("pagetide_server", run_name="__main__")
