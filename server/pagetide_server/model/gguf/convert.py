"""Write a GGUF file's content as a plain model folder; run as a program by `gguf_cache`.

`python -m pagetide_server.model.gguf.convert FILE FOLDER` prints `progress FRACTION` (0 to 1) now and then, or one line
`error TEXT` where the file is at fault. Quantized tensors become float32. What the names and layouts of llama.cpp mean
is taken from transformers' and gguf's own tables; only the reading is ours, since theirs takes a minute.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

from .file import GgufError, GgufFile, GgufTensor, read_gguf
from .shards import Shards
from .tokenizer import write_tokenizer

PIECE_BLOCKS = 8192
PLAIN = {"F32": np.float32, "F16": np.float16}
# ggml type number -> what to compute in.
COMPUTED_IN = {0: "float32", 1: "float16"}
# Kinds whose conversion is known to be right: (name at transformers). Hybrids and encoders are left out.
ARCHITECTURES = {
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "llama": "llama",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "starcoder2": "starcoder2",
}


class Refused(Exception):
    """The file cannot be converted; the text is for the user."""


def main(argv: list[str]) -> int:
    """Convert argv[0] into the existing folder argv[1]."""
    try:
        convert(Path(argv[0]), Path(argv[1]))
    except (GgufError, Refused) as error:
        print(f"error {error}", flush=True)
        return 2
    return 0


def convert(path: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, the weights and the tokenizer of a GGUF file into a folder.

    Raises:
        GgufError: the file is damaged.
        Refused: its model is not known here.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    def size_of(kind: int, elements: int) -> int:
        block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return elements // block * nbytes

    try:
        file = read_gguf(path, size_of)
    except (ValueError, KeyError) as error:
        raise Refused(f"has tensors of an unknown type: {error}") from error
    values = config_values(file)
    _tell(0.05)
    write_tokenizer(file, folder)
    _tell(0.25)
    network, processor = _network(values)
    _write_weights(file, network, processor, folder)
    network.config.dtype = values["dtype"]
    network.config.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(_generation(file), indent=2) + "\n", "utf-8")
    _tell(1.0)


def read_gguf_config(config: EngineConfig) -> Any:
    """transformers' configuration of the GGUF file `config.model`, without converting it.

    Raises:
        SettingError: the file is damaged or its model not known here.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**config_values(read_gguf(Path(config.model).expanduser())))
    except (GgufError, Refused) as error:
        raise SettingError("model", config.model, str(error)) from error


def _tell(fraction: float) -> None:
    print(f"progress {fraction:.3f}", flush=True)


def config_values(file: GgufFile) -> dict[str, Any]:
    """What config.json states, from the file's metadata.

    Raises:
        Refused: the architecture is not known here, it uses something that the file states in llama.cpp's way only, or
            the file has no tokenizer.
    """
    from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING

    architecture, model_type = file.architecture, _model_type(file)
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise Refused("has no tokenizer")
    names = [t.name for t in file.tensors]
    _refuse_scaled_rope(file, names)
    table: Any = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    renames = {architecture: table.get(model_type) or table[architecture], "tokenizer": table["tokenizer"]}
    values: dict[str, Any] = {
        "model_type": model_type,
        "tie_word_embeddings": "output.weight" not in names,
        "dtype": _own_dtype(file),
    }
    for key, value in file.metadata.items():
        prefix, _, rest = key.partition(".")
        name = renames.get(prefix, {}).get(rest)
        if name is not None and name != -1:
            values[name] = value
    if f"{architecture}.attention.key_length" in file.metadata:
        values.setdefault("head_dim", file.metadata[f"{architecture}.attention.key_length"])
    values.setdefault("vocab_size", len(tokens))
    if model_type == "qwen3_moe":
        # llama.cpp always normalizes these weights; the file does not say so.
        values["norm_topk_prob"] = True
    return values


def _model_type(file: GgufFile) -> str:
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise Refused(f"GGUF files of architecture {file.architecture!r} are not supported; known are {known}")
    return ARCHITECTURES[file.architecture]


def _own_dtype(file: GgufFile) -> str:
    """The type to compute in on a GPU: that of the largest tensor, bfloat16 where it is quantized."""
    largest = max(file.tensors, key=lambda t: math.prod(t.shape), default=None)
    return COMPUTED_IN.get(largest.kind, "bfloat16") if largest else "bfloat16"


def _refuse_scaled_rope(file: GgufFile, names: list[str]) -> None:
    scaling = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(n.startswith("rope_") for n in names):
        raise Refused("uses scaled rotary positions, which are not read from GGUF files; use its safetensors folder")


def _network(values: dict[str, Any]) -> tuple[Any, Any]:
    """(the network on the meta device, transformers' processor of its tensors)"""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    config = AutoConfig.for_model(**values)
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    config.architectures = [type(network).__name__]
    architecture = next(a for a, m in ARCHITECTURES.items() if m == values["model_type"])
    processor: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    return network, processor(config=values)


def _write_weights(file: GgufFile, network: Any, processor: Any, folder: Path) -> None:
    shards, wanted = Shards(folder), network.state_dict()
    for i, (name, values) in enumerate(_tensors(file, network, processor)):
        if tuple(wanted[name].shape) != values.shape:
            raise Refused(f"has {name} as {values.shape}, where its settings ask for {tuple(wanted[name].shape)}")
        shards.add(name, values)
        _tell(0.3 + 0.65 * min(1.0, i / len(file.tensors)))
    missing = sorted(set(wanted) - set(shards.where) - set(network.all_tied_weights_keys))
    if missing:
        raise Refused(f"has no tensor for {len(missing)} weights: {', '.join(missing[:3])}")
    shards.close()


def _tensors(file: GgufFile, network: Any, processor: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Each weight under transformers' name, float32."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    names = get_gguf_hf_weights_map(network, processor)
    # Experts come in parts; the processor joins them here.
    joined: dict[str, Any] = {}
    data = np.memmap(file.path, np.uint8, "r")
    for tensor in file.tensors:
        values = _dequantized(tensor, data)
        done = processor.process(
            weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters={"tensors": joined}
        )
        if done.name is None:
            continue
        if done.name not in names:
            raise Refused(f"has an unknown tensor {done.name}")
        yield names[done.name], np.ascontiguousarray(done.weights)
    for name, value in joined.items():
        yield name, value.numpy()


def _dequantized(tensor: GgufTensor, data: np.ndarray) -> np.ndarray:
    """The tensor's values, float32."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    kind = GGMLQuantizationType(tensor.kind)
    block, nbytes = GGML_QUANT_SIZES[kind]
    count = int(np.prod(tensor.shape)) // block
    raw = data[tensor.offset : tensor.offset + count * nbytes]
    if kind.name in PLAIN:
        return raw.view(PLAIN[kind.name]).astype(np.float32).reshape(tensor.shape)
    quant = getattr(quants, kind.name, None)
    if quant is None:
        raise Refused(f"tensor {tensor.name} has type {kind.name}, which the gguf package cannot read")
    quant.init_grid()
    blocks, values = raw.reshape(count, nbytes), np.empty((count, block), np.float32)
    # In pieces that stay in the processor's cache; gguf's own `dequantize` cuts into far smaller ones, at ten times
    # the cost.
    for i in range(0, count, PIECE_BLOCKS):
        values[i : i + PIECE_BLOCKS] = quant.dequantize_blocks(blocks[i : i + PIECE_BLOCKS])
    return values.reshape(tensor.shape)


def _generation(file: GgufFile) -> dict[str, Any]:
    get = file.metadata.get
    ends = [get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    stated = {
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
    }
    distinct = list(dict.fromkeys(e for e in ends if e is not None))
    return {k: v for k, v in stated.items() if v is not None} | ({"eos_token_id": distinct} if distinct else {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
