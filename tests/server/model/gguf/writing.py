"""GGUF files of plain folders, written as llama.cpp writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pagetide_server.model.gguf.convert import convert

Tiny = Callable[[str], Path]

# transformers' names -> llama.cpp's, for the kinds written here
NAMES = {
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {
    "llama": {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    "qwen3": {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}


def gguf_name(name: str, arch: str) -> str:
    name = name.removeprefix("model.").replace("layers.", "blk.")
    if name == "norm.weight":
        return "output_norm.weight"
    for theirs, ours in (NAMES | NORMS[arch]).items():
        name = name.replace(f"{theirs}.", f"{ours}.")
    return name


def as_llama_cpp_keeps_it(name: str, values: np.ndarray, arch: str, config: Any) -> np.ndarray:
    if arch == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
        # llama.cpp rotates neighbouring pairs, transformers the two halves of a head.
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return values


def write_gguf(folder: Path, path: Path, arch: str, quantize: bool = False, **metadata: Any) -> Path:
    """Write the model of a plain folder as a GGUF file of an architecture, its matrices in Q8_0 if asked for."""
    import gguf
    from safetensors.numpy import load_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    add_tokenizer(writer, folder)
    for key, value in metadata.items():
        writer.add_string(key, value)
    for name, values in load_file(folder / "model.safetensors").items():
        new = gguf_name(name, arch)
        values = as_llama_cpp_keeps_it(new, values, arch, config).astype(np.float32)
        if quantize and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(new, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: Any, folder: Path) -> None:
    stated = json.loads((folder / "tokenizer.json").read_text())
    vocab = stated["model"]["vocab"]
    special = {t["id"] for t in stated["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(sorted(vocab, key=vocab.get))
    writer.add_token_types([3 if i in special else 1 for i in range(len(vocab))])
    writer.add_token_merges([" ".join(m) for m in stated["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


def converted(folder: Path, tmp_path: Path, arch: str = "qwen3", **options: Any) -> Path:
    """The plain folder that a model becomes on its way through a GGUF file."""
    out = tmp_path / "out"
    out.mkdir()
    convert(write_gguf(folder, tmp_path / "m.gguf", arch, **options), out)
    return out
