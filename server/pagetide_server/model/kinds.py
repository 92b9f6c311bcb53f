"""What kind a network's layer is. A model's own code may give the names of transformers' layers to others."""

from __future__ import annotations

import torch

# Where the layers come from that we know; a model's own code is in `transformers_modules`.
_KNOWN = ("transformers.", "torch.", "pagetide_server.")


def kind_of(module: torch.nn.Module) -> str:
    """The name of a layer's type; nothing where it, or a part of it, is of a model's own code."""
    known = all(type(part).__module__.startswith(_KNOWN) for part in module.modules())
    return type(module).__name__ if known else ""
