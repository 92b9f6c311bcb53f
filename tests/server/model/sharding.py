"""Weights in several files."""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"


def shard(folder: Path) -> None:
    """Split the weights of a folder over three files with an index."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {}
    for i in range(3):
        name = f"model-0000{i + 1}-of-00003.safetensors"
        part = {k: v for n, (k, v) in enumerate(sorted(weights.items())) if n % 3 == i}
        save_file(part, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
