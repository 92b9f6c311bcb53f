"""Make a tokenizer.json for a folder that has only older tokenizer files (tokenizer.model, vocab.json, ...).

transformers knows how, and needs torch; so this runs in a process of its own, and the API process stays without it:
`python -m pagetide_server.text.convert FOLDER OUTPUT` writes tokenizer.json into OUTPUT.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pagetide_spec.errors import SettingError

OLDER_FILES = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")
TIMEOUT_S = 600.0
REMOTE_CODE = "--trust-remote-code"


def has_older_files(folder: Path) -> bool:
    """Whether there is something that may be converted."""
    return any((folder / name).is_file() for name in OLDER_FILES)


def convert(folder: Path, output: Path, field: str, trust_remote_code: bool) -> None:
    """Write tokenizer.json of the tokenizer in `folder` into the folder `output`.

    Raises:
        SettingError: the files cannot be converted; names the setting `field`.
    """
    command = [sys.executable, "-m", __spec__.name, str(folder), str(output)]
    command += [REMOTE_CODE] if trust_remote_code else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SettingError(field, str(folder), f"its tokenizer took more than {TIMEOUT_S:g} s to convert") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SettingError(field, str(folder), f"its tokenizer cannot be converted: {lines[-1]}")


def main(folder: str, output: str, *options: str) -> None:
    """Convert in this process."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=REMOTE_CODE in options, local_files_only=True)
    loaded.backend_tokenizer.save(str(Path(output) / "tokenizer.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
