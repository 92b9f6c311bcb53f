"""Compile the Triton ops for GPUs that are not at hand: `python -m pagetide_kernels.gpu.ahead_of_time [TARGET...]`.

Prints one JSON object a kernel and target: registers, stack (what spilled), shared memory, and loads of 16 bytes, for
CUDA as cuobjdump finds them in the machine code. Targets are sm_80, sm_90 and gfx942. The forms are those of common
models, and the largest; others differ in numbers only.
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
# Loads of 16 bytes: from global memory to registers, or past them to shared memory.
_WIDE = {"sass": r"\b(?:LDG|LDGSTS)\.\S*\b128\b", "amdgcn": r"(?:global|buffer)_load_dwordx4"}


@dataclasses.dataclass(frozen=True)
class Form:
    """A kernel, the types of its arguments by name, the values of its constants, and what it is launched with."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = dataclasses.field(default_factory=dict)

    def source(self) -> ASTSource:
        """What Triton compiles at a launch; pointers and strides are multiples of 16 where it would look."""
        names = self.kernel.arg_names
        types = {name: "constexpr" if name in self.constants else self.types[name] for name in names}
        blind = {p.name for p in self.kernel.params if p.do_not_specialize or p.do_not_specialize_on_alignment}
        aligned = [
            i for i, n in enumerate(names) if n not in blind and (types[n].startswith("*") or _ALIGNED.search(n))
        ]
        return ASTSource(self.kernel, types, self.constants, {(i,): [["tt.divisibility", 16]] for i in aligned})


def _attention(dtype: str, dim: int, group: int, tokens: int, split: bool, windowed: bool, is_amd: bool) -> Form:
    sizes = paged_attention.sizes_for(tokens, 1, group, dim, {"fp32": 4}.get(dtype, 2), is_amd)
    capped = windowed and dim == 256
    pointers = dict.fromkeys(("query", "key_cache", "value_cache", "out"), f"*{dtype}")
    partial = dict.fromkeys(("sums_out", "tops_out", "totals_out"), "*fp32" if split else f"*{dtype}")
    tables = dict.fromkeys(("block_tables", "context_lens", "query_starts"), "*i32")
    numbers = dict.fromkeys(("sequences", "query_stride", "query_head_stride", "table_stride", "window"), "i32")
    padded = triton.next_power_of_2(dim)
    constants = {
        "KV_HEADS": 8, "GROUP": group, "KEY_DIM": dim, "VALUE_DIM": dim, "KEY_PADDED": padded, "VALUE_PADDED": padded,
        "BLOCK": 16, "ROWS": sizes.rows, "HEADS": sizes.heads, "TILE_QUERIES": sizes.tile_queries, "KEYS": sizes.keys,
        "SPLIT": paged_attention.SPLIT if split else 0, "WINDOWED": windowed, "CAPPED": capped,
    }  # fmt: skip
    name = f"attention {dtype} {dim} rows {sizes.rows}{' split' * split}{' windowed' * windowed}{' capped' * capped}"
    types = pointers | partial | tables | numbers | {"scale": "fp32", "soft_cap": "fp32"}
    return Form(name, paged_attention._attention_kernel, types, constants, sizes.options)


def forms(target: str) -> Iterator[Form]:
    """All that is compiled for a target."""
    for dtype, dim, group, tokens, windowed in (
        ("fp16", 128, 4, 1, False), ("bf16", 128, 2, 1, False), ("bf16", 128, 48, 1, False), ("bf16", 256, 4, 1, True),
        ("fp16", 128, 4, 1000, False), ("bf16", 128, 7, 1000, False), ("bf16", 256, 4, 1000, True),
        ("bf16", 80, 1, 1000, False), ("bf16", 512, 8, 1000, False), ("fp32", 96, 5, 1, True),
        ("fp32", 128, 4, 1, False), ("fp32", 256, 4, 1000, True), ("fp32", 512, 8, 1000, False),
    ):  # fmt: skip
        is_amd, split = TARGETS[target].backend == "hip", tokens == 1 and not windowed
        yield _attention(dtype, dim, group, tokens, split, windowed, is_amd)
    merge = dict.fromkeys(("sums", "tops", "totals"), "*fp32") | {"out": "*bf16", "splits": "i32"}
    constants: dict[str, Any] = {"HEADS": 32, "VALUE_DIM": 128, "VALUE_PADDED": 128, "PARTS": paged_attention.PARTS}
    yield Form("attention merge", paged_attention._merge_kernel, merge, constants)
    norm = dict.fromkeys(("hidden", "weight", "residual", "out"), "*bf16") | {"eps": "fp32"}
    norm |= dict.fromkeys(("hidden_stride", "head_stride", "residual_stride"), "i32")
    constants = {"SIZE": 4096, "PADDED": 4096, "ADDS": True, "PLUS_ONE": True}
    yield Form("rms_norm", rms_norm._rms_norm_kernel, norm, constants, {"num_warps": 8})
    constants = {"SIZE": 128, "PADDED": 128, "ADDS": False, "PLUS_ONE": False}
    yield Form("norm of heads", rms_norm._rms_norm_kernel, norm, constants, {"num_warps": 1})
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
    yield Form("sample", sample._sample_kernel, types, {"BLOCK": sample.BLOCK}, {"num_warps": 16})


def _rotary() -> Form:
    names = ("query", "key", "value", "cos", "sin", "key_cache", "value_cache")
    types = dict.fromkeys(names, "*bf16") | {"slots": "*i64"}
    kernel = rotary_cache._rotate_and_cache_kernel
    types |= {name: "i32" for name in kernel.arg_names if name.endswith("_stride")}
    constants = {
        "HEADS": 32, "KV_HEADS": 8, "KEY_DIM": 128, "VALUE_DIM": 128, "ROTATED": 64, "ROTATED_PADDED": 64,
        "KEY_PADDED": 128, "VALUE_PADDED": 128, "TILE": rotary_cache.TILE, "INTERLEAVED": False,
    }  # fmt: skip
    return Form("rotate_and_cache", kernel, types, constants, {"num_warps": rotary_cache.warps_for(64)})


def compile_form(form: Form, target: str) -> dict[str, Any]:
    """Compile one form and report the result; `stack` is bytes a thread that did not fit the registers."""
    made = triton.compile(form.source(), target=TARGETS[target], options=form.options)
    told = {"kernel": form.name, "function": form.kernel.__name__, "target": target, "shared": made.metadata.shared}
    if "cubin" in made.asm:
        return told | _resources(made.asm["cubin"])
    code = made.asm["amdgcn"]
    told["wide_loads"] = len(re.findall(_WIDE["amdgcn"], code))
    (told["stack"],) = map(int, re.findall(r"\.private_segment_fixed_size:\s*(\d+)", code))
    (told["registers"],) = map(int, re.findall(r"\.vgpr_count:\s*(\d+)", code))
    return told


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack bytes and wide loads, as the cuobjdump in Triton's package reports them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

    def dump(what: str) -> str:
        command = [str(tool), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        numbers = dict(re.findall(r"(REG|STACK):(\d+)", dump("-res-usage")))
        wide = len(re.findall(_WIDE["sass"], dump("-sass")))
    return {"registers": int(numbers["REG"]), "stack": int(numbers["STACK"]), "wide_loads": wide}


def main(targets: list[str]) -> None:
    """Compile everything for `targets`, all by default."""
    for target in targets or TARGETS:
        for form in forms(target):
            print(json.dumps(compile_form(form, target)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
