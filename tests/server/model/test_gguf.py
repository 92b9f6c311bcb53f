"""GGUF files, written here as llama.cpp writes them, become the plain folders they were made from."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide_server.checkpoint import gguf_cache
from pagetide_server.checkpoint.files import resolve
from pagetide_server.checkpoint.gguf_cache import identity
from pagetide_server.model.gguf.convert import Refused, config_values, convert
from pagetide_server.model.gguf.file import GgufError, GgufFile, GgufTensor, read_gguf
from pagetide_server.model.loader import load
from pagetide_server.plan import main as plan_main
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

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


def without_tokenizer(path: Path) -> None:
    """Write the file anew with all its settings but those of the tokenizer."""
    import gguf

    old = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(str(path), old.fields["general.architecture"].contents())
    for key, field in old.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def other_alignment(path: Path) -> None:
    """A file that consists of one setting."""
    key = b"general.alignment"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    path.write_bytes(head + struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 0))


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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


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


def test_two_processes_at_once_convert_once(tiny_model: Tiny, tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m-1.5.Q4.gguf", "qwen3")
    # Left by a process that was killed.
    left = cache / f"m-1.5.Q4-{identity(path)}.unfinished"
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    code = (
        "from pagetide_server.checkpoint.files import resolve; from pagetide_spec.config import EngineConfig\n"
        f"print(resolve(EngineConfig(model={str(path)!r}), lambda stage, part: print(stage)))"
    )
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) for _ in "ab"]
    said = [child.communicate(timeout=120)[0].splitlines() for child in both]
    assert [child.returncode for child in both] == [0, 0]
    folder = Path(said[0][-1])
    assert folder == Path(said[1][-1])
    assert sorted(any("converting" in line for line in lines) for lines in said) == [False, True]
    assert {p.name for p in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    # From now on nothing is converted, and nobody waits.
    stages: list[str] = []
    assert resolve(EngineConfig(model=str(path)), lambda stage, part: stages.append(stage)) == folder
    assert stages == []


@pytest.mark.parametrize(
    "place", [pytest.param(1 << 30, id="within a window"), pytest.param((1 << 30) + 100_000, id="between two windows")]
)
def test_other_content_has_another_identity(place: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    # Sparse, so that it takes no room; its windows lie 8 MiB apart.
    size = 255 * (8 << 20) + 65536
    with path.open("wb") as file:
        file.truncate(size)
    before = identity(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"other")
    assert identity(path) != before


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program do the conversion."""
    monkeypatch.setattr(gguf_cache, "_command", lambda path, target: [sys.executable, "-c", program])


def test_a_child_that_says_much_is_listened_to(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(
        monkeypatch,
        "import sys; print('Some library greets you'); print('progress 0.5', flush=True)\n"
        "sys.stderr.write('a warning\\n' * 20_000); sys.stderr.flush(); print('progress 1.0')",
    )
    (path := tmp_path / "m.gguf").write_bytes(b"any")
    told: list[float] = []
    assert resolve(EngineConfig(model=str(path)), lambda stage, part: told.append(part)).is_dir()
    assert told == [0.5, 1.0]


def test_a_child_that_fails_is_quoted(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import sys; sys.stderr.write('x' * 200_000 + '\\n'); raise ValueError('too odd')")
    (path := tmp_path / "m.gguf").write_bytes(b"any")
    with pytest.raises(PagetideError, match="cannot be converted: ValueError: too odd"):
        resolve(EngineConfig(model=str(path)))
    assert [p.suffix for p in cache.iterdir()] == [".lock"]


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def cut_weights(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def other_magic(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:])


def other_version(path: Path) -> None:
    path.write_bytes(b"GGUF\x09\0\0\0" + path.read_bytes()[8:])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        pytest.param(cut_header, "cut short or damaged", id="cut within the metadata"),
        pytest.param(cut_weights, "is cut short: ", id="cut within the weights"),
        pytest.param(other_magic, "does not begin with the letters GGUF", id="another kind of file"),
        pytest.param(other_version, "is of GGUF version 9", id="an unknown version"),
        pytest.param(lambda p: p.write_bytes(b""), "does not begin", id="an empty file"),
        pytest.param(without_tokenizer, "has no tokenizer", id="no tokenizer"),
        pytest.param(other_alignment, "general.alignment is 0", id="an alignment of 0"),
    ],
)
def test_a_damaged_file_is_known_as_such(
    spoil: Callable[[Path], object], problem: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", "qwen3")
    spoil(path)
    with pytest.raises((GgufError, Refused), match=problem):
        convert(path, tmp_path)


def test_a_fault_found_by_the_child_process_is_one_clear_error(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(SettingError, match=r"m\.gguf': is cut short or damaged") as caught:
        resolve(EngineConfig(model=str(path)))
    assert caught.value.field == "model"
    assert [p.suffix for p in cache.iterdir()] == [".lock"]


def test_an_unknown_architecture_is_refused_by_name(tiny_model: Tiny, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", "qwen3", **{"qwen3.rope.scaling.type": "yarn"})
    file = read_gguf(path)
    with pytest.raises(Refused, match="scaled rotary positions"):
        config_values(file)
    file.metadata["general.architecture"] = "rwkv7"
    with pytest.raises(Refused, match="'rwkv7' are not supported; known are gemma2"):
        config_values(file)


def test_a_missing_tensor_is_named(tiny_model: Tiny, tmp_path: Path) -> None:
    import dataclasses

    from pagetide_server.model.gguf import convert as gguf_convert

    file = read_gguf(write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", "qwen3"))
    less = dataclasses.replace(file, tensors=[t for t in file.tensors if t.name != "blk.2.attn_v.weight"])
    network, processor = gguf_convert._network(gguf_convert.config_values(less))
    with pytest.raises(gguf_convert.Refused, match=r"no tensor for 1 weights: model\.layers\.2\.self_attn\.v_proj"):
        gguf_convert._write_weights(less, network, processor, tmp_path)


def test_a_cache_that_cannot_be_written_says_so(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", "qwen3")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(PagetideError, match="set PAGETIDE_CACHE"):
        resolve(EngineConfig(model=str(path)))


def test_plan_reads_a_file_without_converting_it(
    tiny_model: Tiny, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tiny_model("gemma3"), tmp_path / "m.gguf", "gemma3")
    assert plan_main([str(path), "--device-memory=8GiB"]) == 0
    assert "gemma3_text, 3 layers" in capsys.readouterr().out
    assert not cache.exists()


@pytest.mark.real_model
class TestGemma:
    """Gemma 3 270M: the file and transformers' own answers to it."""

    # Greedy answers of transformers 5.24 loading the GGUF file by itself, in float32.
    PROMPT = (2, 818, 5279, 529, 7001, 563)
    ANSWER = " the capital of the country of France. It is the largest city in France and"

    def test_loads_and_answers(self, gemma_gguf: Path, toy: Any) -> None:
        from tokenizers import Tokenizer

        config = EngineConfig(model=str(gemma_gguf))
        folder = resolve(config)
        start = time.monotonic()
        loaded = load(config)
        assert time.monotonic() - start < 60
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.encode("The capital of France is").ids == list(self.PROMPT)
        answer = toy.answers(loaded, [list(self.PROMPT), list(range(1000, 1030))], 16, chunk=4)[0]
        assert tokenizer.decode(answer) == self.ANSWER

    @pytest.mark.slow
    def test_the_tokenizer_equals_transformers_own_reading(self, gemma_gguf: Path) -> None:
        from transformers import AutoTokenizer

        mine = AutoTokenizer.from_pretrained(resolve(EngineConfig(model=str(gemma_gguf))))
        theirs = AutoTokenizer.from_pretrained(gemma_gguf.parent, gguf_file=gemma_gguf.name)
        for text in TEXTS:
            assert mine(text).input_ids == theirs(text).input_ids, text
            ids = theirs(text).input_ids
            assert mine.decode(ids) == theirs.decode(ids)

    def test_equals_generate(self, gemma_gguf: Path, toy: Any) -> None:
        config = EngineConfig(model=str(gemma_gguf))
        folder = resolve(config)
        # The last is longer than the window of 512.
        prompts = [list(self.PROMPT), [2, 9, 30_000, 77, 1_234], [2, *range(5_000, 5_560)]]
        expected = toy.expected_answers(folder, prompts, 12)
        assert toy.answers(load(config), prompts, 12, chunk=200) == expected


TEXTS = [
    "Hello, world!",
    "  two  spaces\tand\n\n\nlines   ",
    "naïve café, ÅÄÖ, Straße, 東京タワー, привет, שלום, हिन्दी",
    "🙂👍🏽👨‍👩‍👧‍👦 emoji",
    "\x00\x07\ufffd\u200b control",
    "def f(x):\n        return x ** 2  # comment\n",
    "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<unused7><mask>[multimodal]",
    "1234567890 3.14159 0xDEADBEEF",
    "▁ already ▁▁ there",
    "",
]


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
