"""Gemma 3 270M from its GGUF file, against transformers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide_server.checkpoint.files import resolve
from pagetide_server.model.loader import LoadedModel, load
from pagetide_spec.config import EngineConfig


@pytest.mark.real_model
class TestGemma:
    """Gemma 3 270M: the file and transformers' own answers to it."""

    # Greedy answers of transformers 5.24 loading the GGUF file by itself, in float32.
    PROMPT = (2, 818, 5279, 529, 7001, 563)
    ANSWER = " the capital of the country of France. It is the largest city in France and"

    @pytest.fixture(scope="class")
    def loaded(self, gemma_gguf: Path) -> LoadedModel:
        """The model, with its file converted before the clock runs."""
        config = EngineConfig(model=str(gemma_gguf))
        resolve(config)
        start = time.monotonic()
        loaded = load(config)
        assert time.monotonic() - start < 60
        return loaded

    def test_loads_and_answers(self, loaded: LoadedModel, gemma_gguf: Path, toy: Any) -> None:
        from tokenizers import Tokenizer

        folder = resolve(EngineConfig(model=str(gemma_gguf)))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.encode("The capital of France is").ids == list(self.PROMPT)
        answer = toy.answers(loaded, [list(self.PROMPT), list(range(1000, 1030))], 16, chunk=4)[0]
        assert tokenizer.decode(answer) == self.ANSWER

    @pytest.mark.slow
    def test_the_tokenizer_equals_transformers_own_reading(
        self, gemma_gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from transformers import AutoTokenizer

        # Half of its time would go into numpy's wrapping of each of the million views of a mapped file.
        monkeypatch.setattr(np, "memmap", lambda path, **how: np.fromfile(path, np.uint8))
        mine = AutoTokenizer.from_pretrained(resolve(EngineConfig(model=str(gemma_gguf))))
        theirs = AutoTokenizer.from_pretrained(gemma_gguf.parent, gguf_file=gemma_gguf.name)
        for text in TEXTS:
            assert mine(text).input_ids == theirs(text).input_ids, text
            ids = theirs(text).input_ids
            assert mine.decode(ids) == theirs.decode(ids)

    def test_equals_generate(self, loaded: LoadedModel, gemma_gguf: Path, toy: Any) -> None:
        folder = resolve(EngineConfig(model=str(gemma_gguf)))
        # The last is longer than the window of 512.
        prompts = [list(self.PROMPT), [2, 9, 30_000, 77, 1_234], [2, *range(5_000, 5_560)]]
        expected = toy.expected_answers(folder, prompts, 12)
        assert toy.answers(loaded, prompts, 12, chunk=200) == expected


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
