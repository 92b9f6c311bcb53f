"""Answers of random logits that follow a structure."""

import json
from collections.abc import Callable

import torch

from pagetide_server.engine.sampling.compiler import Grammar
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence
from pagetide_server.text.tokenizer import Tokenizer

MakeSequence = Callable[..., Sequence]
EOS = 2


# Logits may be wider than the vocabulary: models pad it.
EXTRA = 37

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"color": {"enum": ["red", "grün"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["color", "count"],
        "additionalProperties": False,
    }
)


def write(tokenizer: Tokenizer, grammar: Grammar, sequence: Sequence, seed: int = 0, most: int = 400) -> str | None:
    """The text of an answer of random logits; None if it did not end within `most` tokens."""
    width = tokenizer.vocab_size + EXTRA
    sampler = Sampler(width, "cpu", eos_token_ids=tokenizer.eos_token_ids)
    random = torch.Generator().manual_seed(seed)
    sequence.matcher = grammar.matcher()
    closing = [tokenizer.encode(f"x{c}")[-1] for c in '"}]0']
    for _ in range(most):
        logits = torch.randn(1, width, generator=random)
        # Ends are made likely, so that answers of open length come to them.
        logits[0, [EOS, *closing]] += 4
        result = sampler.sample(logits, [sequence])
        assert result.errors == {}
        token = result.token_ids[0]
        assert sequence.matcher.accept(token)
        sequence.tokens.append(token)
        if token in tokenizer.eos_token_ids:
            return tokenizer.decode_bytes(sequence.tokens[sequence.prompt_len :]).decode()
    return None


def is_document(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"color", "count"} and value["color"] in ("red", "grün") and value["count"] in range(10)


WORD = "𓀀𓃰 ꙮ𝔘é"
