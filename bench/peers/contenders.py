"""Who takes part: its precision, where it is installed, and the command that runs it on a job."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"
ROOT = Path(__file__).parents[2]
OURS = os.pathsep.join(str(ROOT / part) for part in ("operator", "server", "kernels"))


@dataclasses.dataclass(frozen=True)
class Contender:
    """One engine with one kind of weights.

    Attributes:
        weights: what the weights are kept in while it computes.
        bits: of one weight; contenders of 16 and 32 bits are of one class, as are those of 8, and those of 4.
        driver: the script that runs it.
        home: the folder or program of the installation, below the peers' folder; "" is this Python.
        model: ending of the model's path: a folder ("") or a file made from it.
        options: what the driver is told, by workload; "" is for all.
    """

    name: str
    weights: str
    bits: int
    driver: str
    home: str = ""
    model: str = ""
    options: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    workloads: tuple[str, ...] = ("W1", "W2", "W3", "W4")

    @property
    def precision(self) -> str:
        """The class within which contenders may be compared."""
        return "16/32-bit" if self.bits >= 16 else f"{self.bits}-bit"

    def options_of(self, workload: str) -> dict[str, Any]:
        """What the driver is told for a workload."""
        return {**self.options.get("", {}), **self.options.get(workload, {})}

    def needs(self, peers: Path, model: Path) -> list[Path]:
        """What must be there for it to take part."""
        return [*([peers / self.home] if self.home else []), self.model_path(model)]

    def model_path(self, model: Path) -> Path:
        """Its own form of the model in the folder `model`."""
        return model.with_name(model.name + self.model)

    def command(self, peers: Path) -> list[str]:
        """The driver's command line, without the file for its result."""
        home = peers / self.home
        is_python = bool(self.home) and home.name == "python"
        return [str(home) if is_python else sys.executable, str(DRIVERS / self.driver)]


# llama.cpp divides its context among its slots: as many as requests would leave it less than its best batch.
_SLOTS = {
    "W1": {"slots": 16, "context": 512},
    "W2": {"slots": 16, "context": 640},
    "W3": {"slots": 1, "context": 512},
    "W4": {"slots": 1, "context": 4352},
}
# OpenVINO keeps no prefix unless it is told to; the others do so by themselves.
_SHARES = {"W2": {"prefix_caching": True}}
_LLAMA = "llama.cpp/bin/llama-server"
_OPENVINO, _VLLM = "openvino/bin/python", "vllm/bin/python"
_TRANSFORMERS = "transformers/bin/python"

CONTENDERS = {
    c.name: c
    for c in (
        Contender("pagetide", "float32", 32, "drive_pagetide.py"),
        Contender("pagetide-all-logits", "float32", 32, "drive_pagetide.py", options={"": {"all_logits": True}}),
        Contender("pagetide-int8", "int8", 8, "drive_pagetide.py", options={"": {"quantization": "int8"}}),
        # The model as it is published: weights of 16 bits stay so in memory, the arithmetic is float32.
        Contender("pagetide-bf16", "bfloat16", 16, "drive_pagetide.py", model="-bf16"),
        Contender("pagetide-http", "float32", 32, "drive_pagetide_http.py"),
        Contender("pagetide-bf16-http", "bfloat16", 16, "drive_pagetide_http.py", model="-bf16"),
        Contender("vllm", "float32", 32, "drive_vllm.py", _VLLM),
        Contender("vllm-bf16", "bfloat16", 16, "drive_vllm.py", _VLLM, "-bf16", {"": {"dtype": "bfloat16"}}),
        Contender(
            "openvino-bf16",
            "bfloat16",
            16,
            "drive_openvino.py",
            _OPENVINO,
            "-ov",
            {"": {"precision": "bf16"}, **_SHARES},
        ),
        Contender("openvino", "float32", 32, "drive_openvino.py", _OPENVINO, "-ov", _SHARES),
        Contender("llama.cpp", "float32", 32, "drive_llama.py", _LLAMA, "-f32.gguf", _SLOTS),
        Contender("llama.cpp-q8_0", "Q8_0", 8, "drive_llama.py", _LLAMA, "-q8_0.gguf", _SLOTS),
        Contender("transformers", "float32", 32, "drive_transformers.py", _TRANSFORMERS),
        Contender(
            "transformers-cb", "float32", 32, "drive_transformers.py", _TRANSFORMERS, options={"": {"continuous": True}}
        ),
    )
}


class UnlikePrecisions(Exception):
    """Contenders of different classes of precision were asked for; the text says which."""


def check_precisions(chosen: Sequence[Contender], unlike: bool) -> None:
    """Refuse to compare weights of different sizes, unless `unlike` says that this is meant.

    Raises:
        UnlikePrecisions: names the classes, who is in each, and the way out.
    """
    classes: dict[str, list[str]] = {}
    for contender in chosen:
        classes.setdefault(contender.precision, []).append(f"{contender.name} ({contender.weights})")
    if len(classes) > 1 and not unlike:
        groups = "; ".join(f"{name}: {', '.join(members)}" for name, members in classes.items())
        raise UnlikePrecisions(
            f"weights of unlike precision are no fair pair: {groups}. "
            "Choose contenders of one class, or say --unlike-precisions"
        )
