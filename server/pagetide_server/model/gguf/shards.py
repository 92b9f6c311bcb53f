"""Write weights as safetensors files of bounded size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SHARD_BYTES = 2 << 30


class Shards:
    """safetensors files in a folder, with an index where there is more than one.

    Holds at most SHARD_BYTES of tensors in memory, or one greater tensor.
    `where` maps a tensor to the number of its file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where: dict[str, int] = {}
        self._open: dict[str, np.ndarray] = {}
        self._files: list[Path] = []

    def add(self, name: str, values: np.ndarray) -> None:
        """Take up a tensor; may write a file."""
        if self._open and sum(v.nbytes for v in self._open.values()) + values.nbytes > SHARD_BYTES:
            self._write()
        self._open[name] = values
        self.where[name] = len(self._files)

    def _write(self) -> None:
        from safetensors.numpy import save_file

        path = self.folder / f"part-{len(self._files)}.safetensors"
        save_file(self._open, path, metadata={"format": "pt"})
        self._files.append(path)
        self._open = {}

    def close(self) -> None:
        """Write what is left, and give the files the names that loaders look for."""
        self._write()
        count = len(self._files)
        if count == 1:
            self._files[0].rename(self.folder / "model.safetensors")
            return
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        for path, name in zip(self._files, names, strict=True):
            path.rename(self.folder / name)
        index = {"metadata": {}, "weight_map": {name: names[i] for name, i in self.where.items()}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")
