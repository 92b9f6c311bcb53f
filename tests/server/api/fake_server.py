"""`pagetide serve` with the fake core: the real command line, HTTP side and engine process, and no model."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pagetide_server.serve import main
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.streams import run_program

HERE = str(Path(__file__).parent)


def load_tokenizer(config):
    """The tokenizer in the folder that the settings name; after FAKE_TOKENIZER_S seconds, as if it were fetched."""
    time.sleep(float(os.environ.get("FAKE_TOKENIZER_S", "0")))
    return Tokenizer.from_folder(Path(config.tokenizer or config.model))


if __name__ == "__main__":
    # The engine process has to find fake_core.
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    sys.exit(run_program(lambda: main(None, "fake_core:create", load_tokenizer), "pagetide serve"))
