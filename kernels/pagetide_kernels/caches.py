"""The form of a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

# Keys and values of each layer: [blocks, block_size, kv_heads, dim]
Caches: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]
