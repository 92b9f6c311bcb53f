"""Files that are damaged or of a kind that is not known, each refused by its reason."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetide_server.model.gguf.convert import Refused, config_values, convert
from pagetide_server.model.gguf.file import GgufError, read_gguf

from .writing import Tiny, write_gguf


def without_tokenizer(path: Path) -> None:
    """Write the file again with all its settings but those of the tokenizer."""
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
