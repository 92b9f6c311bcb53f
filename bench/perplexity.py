"""What fewer bits cost: `python bench/perplexity.py MODEL [TEXT] [--dtypes float32,float16,bfloat16] [--window 512]`.

Perplexity of a fixed text (bench/data, public domain) under each type of weights, each piece of `window` tokens on its
own; how far the logits are from float32's, and how often the most probable token is another.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pagetide_server.engine.sequence import Row, Sequence, Step
from pagetide_server.model.loader import load
from pagetide_server.model.runner import Runner
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import AddRequest, SamplingParams
from pagetide_spec.config import EngineConfig

TEXT = Path(__file__).parent / "data" / "english.txt"
BLOCK = 16


@dataclasses.dataclass
class Score:
    """Sums over all tokens that were predicted."""

    nats: float = 0.0
    tokens: int = 0
    squares: float = 0.0
    difference: float = 0.0
    others: int = 0

    def add(self, logits: torch.Tensor, ids: torch.Tensor, exact: torch.Tensor) -> None:
        """logits, and those of float32: [tokens, vocab]; row i predicts ids[i + 1]."""
        chosen = torch.log_softmax(logits[:-1], -1).gather(1, ids[1:, None])
        self.nats -= float(chosen.double().sum())
        self.tokens += len(ids) - 1
        self.squares += float(exact.double().pow(2).sum())
        self.difference += float((logits - exact).double().pow(2).sum())
        self.others += int((logits.argmax(-1) != exact.argmax(-1)).sum())

    def line(self) -> str:
        """As it is printed."""
        perplexity = float(torch.tensor(self.nats / self.tokens).exp())
        error = (self.difference / self.squares) ** 0.5
        return f"{perplexity:11.4f}{error:16.2e}{self.others:8} of {self.tokens}"


def pieces(config: EngineConfig, text: Path, window: int) -> list[list[int]]:
    """The text's tokens in pieces, each behind the token that begins a text, if the model has one."""
    ids = Tokenizer.load(config).encode(text.read_text("utf-8"))
    first, rest = ids[:1], ids[1:]
    size = window - 1
    return [first + rest[i : i + size] for i in range(0, len(rest), size) if len(rest[i : i + size]) > 1]


def logits_of(config: EngineConfig, tokens: list[list[int]]) -> Iterator[torch.Tensor]:
    """Logits of every position of each piece: [tokens, vocab]."""
    loaded = load(config)
    blocks = -(-max(map(len, tokens)) // BLOCK)
    runner = Runner(loaded, blocks, 0, BLOCK)
    for ids in tokens:
        params: Any = SamplingParams(prompt_logprobs=0)
        sequence = Sequence(AddRequest(request_id="0", prompt_token_ids=ids, params=params, arrival=0.0), 0)
        sequence.blocks = list(range(blocks))
        yield runner.execute(Step([Row(sequence, 0, len(ids), samples=True)])).prompt[0]


def main() -> None:
    """Print one line a type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", nargs="?", type=Path, default=TEXT)
    parser.add_argument("--dtypes", default="float32,float16,bfloat16,int8")
    parser.add_argument("--window", type=int, default=512)
    arguments = parser.parse_args()
    config = EngineConfig(model=arguments.model, dtype="float32")
    tokens = pieces(config, arguments.text, arguments.window)
    exact = list(logits_of(config, tokens))
    print(f"{'weights':12}{'perplexity':>11}{'error of logits':>16}{'other token':>16}")
    for name in arguments.dtypes.split(","):
        changes = {"quantization": "int8", "dtype": "auto"} if name == "int8" else {"dtype": name}
        score = Score()
        for logits, ids, reference in zip(
            logits_of(dataclasses.replace(config, **changes), tokens), tokens, exact, strict=True
        ):
            score.add(logits, torch.tensor(ids), reference)
        print(f"{name:12}{score.line()}", flush=True)


if __name__ == "__main__":
    main()
