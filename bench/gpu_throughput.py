"""Output tokens per second of a random model of the shape of Qwen3-0.6B: `python bench/gpu_throughput.py [requests]`.

256 requests by default, prompts and answers uniformly 100 to 1024 tokens long, all at once. Public figures for this
workload on an A800: nano-vllm 10,009 and vLLM 0.10.2 8,588 tokens per second. Nothing is downloaded. `--small` takes a
model that a CPU can run, to try the script itself; `--enforce-eager` shows what captured decode steps are worth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QWEN3_06B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
SMALL = QWEN3_06B | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
}


def save_model(folder: Path, shape: dict[str, Any]) -> None:
    """Random weights of this shape, and a tokenizer of single bytes that nothing here uses."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=torch.bfloat16).save_pretrained(folder)
    alphabet = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def where(attention: str) -> dict[str, str]:
    """What the figures were taken on, and with what."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found = {"device": name, "attention": attention, "torch": torch.__version__}
    return found | ({"triton": version("triton")} if find_spec("triton") else {})


def main() -> int:
    """Print one JSON object; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("requests", type=int, nargs="?", default=256)
    parser.add_argument("--small", action="store_true", help="a tiny model, to try this script")
    parser.add_argument("--enforce-eager", action="store_true", help="launch decode steps piece by piece")
    arguments = parser.parse_args()
    if arguments.requests < 1:
        parser.error(f"argument requests: must be at least 1, not {arguments.requests}")
    import torch

    from pagetide_server import LLM, SamplingParams

    if not (torch.cuda.is_available() or arguments.small):
        print("no GPU is here, so there is nothing to measure; --small tries the script on a CPU", file=sys.stderr)
        return 1
    chance = random.Random(0)
    shape = SMALL if arguments.small else QWEN3_06B
    lengths = [(chance.randint(100, 1024), chance.randint(100, 1024)) for _ in range(arguments.requests)]
    prompts = [[chance.randrange(shape["vocab_size"]) for _ in range(n)] for n, _ in lengths]
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n) for _, n in lengths]
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), shape)
        with LLM(folder, dtype="bfloat16", max_model_len=4096, enforce_eager=arguments.enforce_eager) as llm:
            # What is compiled or captured at first use does not count.
            llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), progress=False)
            start = time.perf_counter()
            llm.generate(prompts, params, progress=False)
            seconds, attention = time.perf_counter() - start, llm._core.ready.attention
    made = sum(n for _, n in lengths)
    told: dict[str, Any] = {"requests": len(lengths), "output_tokens": made, "seconds": round(seconds, 2)}
    told |= {"output_tokens_per_second": round(made / seconds, 1), "enforce_eager": arguments.enforce_eager}
    print(json.dumps(told | where(attention)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
