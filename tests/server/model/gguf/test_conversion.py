"""GGUF files, written here as llama.cpp writes them, become the plain folders they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide_server.model.gguf.convert import config_values
from pagetide_server.model.gguf.file import GgufFile, GgufTensor, read_gguf
from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig

from .writing import Tiny, converted, write_gguf


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param("llama-wide", "llama", id="Llama: rows of queries and keys are permuted"),
        pytest.param("qwen3", "qwen3", id="Qwen3: the output matrix is the embedding"),
        pytest.param("gemma3", "gemma3", id="Gemma 3: norms carry one more"),
    ],
)
def test_weights_come_back_bit_by_bit(name: str, arch: str, tiny_model: Tiny, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folder = tiny_model(name)
    out = converted(folder, tmp_path, arch)
    found, expected = load_file(out / "model.safetensors"), load_file(folder / "model.safetensors")
    assert set(found) == set(expected)
    for key, values in expected.items():
        # A norm's weight lost its last bits when one was added to it.
        close = 1e-7 if arch == "gemma3" and key.endswith("norm.weight") else 0
        np.testing.assert_allclose(found[key], values, rtol=0, atol=close, err_msg=key)


def test_quantized_weights_are_what_the_gguf_package_reads(tiny_model: Tiny, tmp_path: Path) -> None:
    import gguf
    from safetensors.numpy import load_file

    found = load_file(converted(tiny_model("qwen3"), tmp_path, quantize=True) / "model.safetensors")
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        if tensor.name == "blk.1.ffn_up.weight":
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
    np.testing.assert_array_equal(found["model.layers.1.mlp.up_proj.weight"], expected)


def test_the_reader_agrees_with_the_gguf_package(tiny_model: Tiny, tmp_path: Path) -> None:
    import gguf

    path = write_gguf(tiny_model("gemma3"), tmp_path / "m.gguf", "gemma3", quantize=True)
    mine, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert mine.metadata == fields
    assert [(t.name, t.offset, t.kind) for t in mine.tensors] == [
        (t.name, t.data_offset, t.tensor_type) for t in theirs.tensors
    ]


def test_a_converted_model_answers_as_the_original(tiny_model: Tiny, tmp_path: Path, toy: Any) -> None:
    loaded = load(EngineConfig(model=str(converted(tiny_model("qwen3"), tmp_path))))
    assert loaded.eos_token_ids == (2, 5)
    assert loaded.max_model_len == 512
    prompts = [[9, 50, 300, 7], list(range(20, 60))]
    expected = toy.answers(load(EngineConfig(model=str(tiny_model("qwen3")))), prompts, 12)
    assert toy.answers(loaded, prompts, 12) == expected


def test_the_tokenizer_comes_along(tiny_model: Tiny, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    out = converted(tiny_model("qwen3"), tmp_path)
    mine, original = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(tiny_model("qwen3"))
    for text in ("Once upon a  time", "  naïve 東京 🙂👍\t\n", "<|user|>hi</s>", ""):
        ids = mine(text).input_ids
        assert ids == original(text).input_ids
        assert mine.decode(ids, skip_special_tokens=True) == original.decode(ids, skip_special_tokens=True)
    assert mine.chat_template == "{{ messages }}"
    assert mine.eos_token == "</s>"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(0, "float32", id="F32"),
        pytest.param(1, "float16", id="F16"),
        pytest.param(12, "bfloat16", id="Q4_K"),
        pytest.param(30, "bfloat16", id="BF16"),
    ],
)
def test_on_a_gpu_a_model_computes_in_the_type_of_its_largest_tensor(kind: int, dtype: str) -> None:
    tensors = [GgufTensor("norm", (64,), 0, 0), GgufTensor("matrix", (64, 64), kind, 0)]
    metadata = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"]}
    values = config_values(GgufFile(Path("m.gguf"), metadata, tensors))
    assert values["dtype"] == dtype
