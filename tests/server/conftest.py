"""Small real tokenizers of the families that models use, made once a run."""

import string

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from pagetide_server.text.tokenizer import Tokenizer

CORPUS = [
    "The old harbour town lies at the mouth of a slow river, and the fishermen leave before the sun is up.",
    "They carry bread, salt and coffee; they talk about the weather, because it decides what they will earn.",
    "Größe, naïve café, déjà vu. 東京は大きい。 Привет, мир! 😀",
    '{"color": "red", "count": 3} [1, 2, 3] <b>bold</b>\n\n\tdef f(x):\n        return x + 1\n',
]
SPECIAL = ["<unk>", "<bos>", "<eos>", "<turn>"]
SETTINGS = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def _pieces(prefix_space: bool) -> dict[str, int]:
    """A merged vocabulary with `▁` for the space, learnt from the corpus."""
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prefix_space else "never")
    alphabet = list(string.ascii_letters + string.digits + string.punctuation)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["".join(c for c in line if c.isascii()) for line in CORPUS], trainer)
    return backend.get_vocab()


def _byte_tokens() -> list[str]:
    return [f"<0x{b:02X}>" for b in range(256)]


def make_byte_level() -> Backend:
    """As GPT-2, Llama 3 and Qwen: bytes written as characters, merged."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def make_unigram(prefix_space: bool) -> Backend:
    """As SentencePiece models: `▁` for the space, bytes for unknown characters.

    With `prefix_space` a space goes before each text and is stripped from what is decoded, as Llama 2 does it; without,
    as Gemma does it.
    """
    pieces = [p for p in _pieces(prefix_space) if p not in SPECIAL]
    names = [*SPECIAL, *_byte_tokens(), "▁", *(p for p in pieces if p != "▁")]
    scores = [0.0] * len(SPECIAL) + [-20.0] * 256 + [-float(10 - min(len(p), 8)) for p in names[len(SPECIAL) + 256 :]]
    backend = Backend(models.Unigram(list(zip(names, scores, strict=True)), unk_id=0, byte_fallback=True))
    spaces = [normalizers.Replace(" ", "▁")]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix_space:
        spaces.insert(0, normalizers.Prepend("▁"))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(SPECIAL)
    return backend


MAKERS = {
    "byte_level": make_byte_level,
    "gemma_like": lambda: make_unigram(prefix_space=False),
    "llama2_like": lambda: make_unigram(prefix_space=True),
}


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """One tokenizer of each family, by its name."""
    return {name: Tokenizer(make(), SETTINGS) for name, make in MAKERS.items()}


@pytest.fixture(scope="session", params=list(MAKERS))
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    """Each family in turn."""
    return tokenizers[request.param]


@pytest.fixture(scope="session")
def byte_level(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    """The byte-level one, for what does not depend on the family."""
    return tokenizers["byte_level"]
