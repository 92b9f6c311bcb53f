"""Compile the Triton ops for GPUs that are not at hand: `python -m pagetide_kernels.gpu.ahead_of_time [TARGET...]`.

Prints one JSON object a kernel and target: registers, stack (what spilled), shared memory, 16-byte accesses. Targets
are sm_80, sm_90 and gfx942. The forms are those of common models; others differ in numbers only.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import gated, move_blocks, paged_attention, rms_norm, rotary_cache, sample

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Integers that are multiples of 16 as a rule, which Triton compiles for: strides of rows and heads, the vocabulary.
_ALIGNED = re.compile(r"stride$|^vocabulary$")
_WIDE = {
    "ptx": r"(?:ld|st)\.global\S*\.v4\.b32|(?:ld|st)\.global\S*\.v2\.b64|cp\.async\.cg\.shared\.global",
    "amdgcn": r"(?:global|buffer)_(?:load|store)_dwordx4",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Form:
    """A kernel, the types of its arguments by name, the values of its constants, and the warps it is launched with."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4

    def source(self) -> ASTSource:
        """What Triton compiles; pointers and strides are multiples of 16."""
        names = self.kernel.arg_names
        types = {name: "constexpr" if name in self.constants else self.types[name] for name in names}
        aligned = [i for i, n in enumerate(names) if types[n].startswith("*") or _ALIGNED.search(n)]
        return ASTSource(self.kernel, types, self.constants, {(i,): [["tt.divisibility", 16]] for i in aligned})


def _attention(dtype: str, dim: int, group: int, tokens: int, split: bool, windowed: bool, capped: bool) -> Form:
    sizes = paged_attention.sizes_for(tokens, 1, group, dim, {"fp32": 4}.get(dtype, 2))
    pointers = dict.fromkeys(("query", "key_cache", "value_cache", "out"), f"*{dtype}")
    partial = dict.fromkeys(("sums_out", "tops_out", "totals_out"), "*fp32" if split else f"*{dtype}")
    tables = dict.fromkeys(("block_tables", "context_lens", "query_starts"), "*i32")
    numbers = dict.fromkeys(("sequences", "query_stride", "query_head_stride", "table_stride", "window"), "i32")
    padded = triton.next_power_of_2(dim)
    constants = {
        "KV_HEADS": 8, "GROUP": group, "KEY_DIM": dim, "VALUE_DIM": dim, "KEY_PADDED": padded, "VALUE_PADDED": padded,
        "BLOCK": 16, "ROWS": sizes.rows, "TILE_QUERIES": sizes.tile_queries, "KEYS": sizes.keys,
        "SPLIT": paged_attention.SPLIT if split else 0, "WINDOWED": windowed, "CAPPED": capped,
    }  # fmt: skip
    name = f"attention {dtype} {dim} rows {sizes.rows}{' split' * split}{' windowed' * windowed}{' capped' * capped}"
    types = pointers | partial | tables | numbers | {"scale": "fp32", "soft_cap": "fp32"}
    return Form(name, paged_attention._attention_kernel, types, constants, sizes.warps)


def forms() -> Iterator[Form]:
    """All that is compiled."""
    yield _attention("fp16", 128, 4, 1, split=True, windowed=False, capped=False)
    yield _attention("bf16", 128, 2, 1, split=True, windowed=False, capped=False)
    yield _attention("bf16", 128, 4, 1000, split=False, windowed=False, capped=False)
    yield _attention("bf16", 256, 4, 1000, split=False, windowed=True, capped=True)
    yield _attention("bf16", 80, 1, 1000, split=False, windowed=False, capped=False)
    yield _attention("fp32", 96, 5, 1, split=False, windowed=True, capped=False)
    merge = dict.fromkeys(("sums", "tops", "totals"), "*fp32") | {"out": "*bf16"}
    constants: dict[str, Any] = {"HEADS": 32, "SPLITS": 8, "SPLITS_PADDED": 8, "VALUE_DIM": 128, "VALUE_PADDED": 128}
    yield Form("attention merge", paged_attention._merge_kernel, merge, constants)
    norm = dict.fromkeys(("hidden", "weight", "residual", "out"), "*bf16") | {"eps": "fp32"}
    norm |= dict.fromkeys(("hidden_stride", "head_stride", "residual_stride"), "i32")
    constants = {"SIZE": 4096, "PADDED": 4096, "ADDS": True, "PLUS_ONE": True}
    yield Form("rms_norm", rms_norm._rms_norm_kernel, norm, constants, 8)
    constants = {"SIZE": 128, "PADDED": 128, "ADDS": False, "PLUS_ONE": False}
    yield Form("norm of heads", rms_norm._rms_norm_kernel, norm, constants, 1)
    for activation in gated.ACTIVATIONS:
        types = {"gate_up": "*bf16", "out": "*bf16", "stride": "i32"}
        constants = {"SIZE": 14336, "ACTIVATION": activation, "BLOCK": gated.BLOCK}
        yield Form(f"gated {activation}", gated._gated_kernel, types, constants)
    yield _rotary()
    types = {"addresses": "*i64", "table": "*i64", "count": "i32"}
    constants = {"WORDS": 4096, "CHUNK": move_blocks.CHUNK}
    yield Form("move_blocks", move_blocks._move_blocks_kernel, types, constants)
    types = dict.fromkeys(("logits", "temperatures", "top_ps", "min_ps"), "*fp32")
    types |= dict.fromkeys(("top_ks", "first", "second"), "*i32")
    types |= {"starts": "*i64", "out": "*i64", "logits_stride": "i32", "vocabulary": "i32"}
    yield Form("sample", sample._sample_kernel, types, {"BLOCK": sample.BLOCK}, 16)


def _rotary() -> Form:
    names = ("query", "key", "value", "cos", "sin", "key_cache", "value_cache")
    types = dict.fromkeys(names, "*bf16") | {"slots": "*i64"}
    kernel = rotary_cache._rotate_and_cache_kernel
    types |= {name: "i32" for name in kernel.arg_names if name.endswith("_stride")}
    constants = {
        "HEADS": 32, "KV_HEADS": 8, "KEY_DIM": 128, "VALUE_DIM": 128, "ROTATED": 64, "ROTATED_PADDED": 64,
        "KEY_PADDED": 128, "VALUE_PADDED": 128, "INTERLEAVED": False,
    }  # fmt: skip
    return Form("rotate_and_cache", kernel, types, constants, 1)


def compile_form(form: Form, target: str) -> dict[str, Any]:
    """Compile one form and tell of what came out; `stack` is bytes a thread that did not fit the registers."""
    made = triton.compile(form.source(), target=TARGETS[target], options={"num_warps": form.warps})
    language = "ptx" if "ptx" in made.asm else "amdgcn"
    told = {"kernel": form.name, "target": target, "shared": made.metadata.shared}
    told["wide_accesses"] = len(re.findall(_WIDE[language], made.asm[language]))
    if language == "amdgcn":
        (told["stack"],) = map(int, re.findall(r"\.private_segment_fixed_size:\s*(\d+)", made.asm[language]))
        (told["registers"],) = map(int, re.findall(r"\.vgpr_count:\s*(\d+)", made.asm[language]))
    else:
        told |= _resources(made.asm["cubin"])
    return told


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers and stack bytes, as the cuobjdump in Triton's package tells them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return {"registers": int(numbers["REG"]), "stack": int(numbers["STACK"])}


def main(targets: list[str]) -> None:
    """Compile everything for `targets`, all by default."""
    for target in targets or TARGETS:
        for form in forms():
            print(json.dumps(compile_form(form, target)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
