"""What kind a network's layer is. A model's own code may give the names of transformers' layers to others."""

from __future__ import annotations

import torch

# What transformers calls the activations that gated layers have here, and what `gated` calls them.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# RMS norms of x / rms(x) * (1 + weight); the others know no 1.
PLUS_ONE_NORMS = {"GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"}
# Where the layers come from that we know; a model's own code is in `transformers_modules`.
_KNOWN = ("transformers.", "torch.", "pagetide_server.")


def kind_of(module: torch.nn.Module) -> str:
    """The name of a layer's type; nothing where it, or a part of it, is of a model's own code."""
    known = all(type(part).__module__.startswith(_KNOWN) for part in module.modules())
    return type(module).__name__ if known else ""
