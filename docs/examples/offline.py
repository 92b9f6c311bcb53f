"""A batch of prompts in one process, without a server: python offline.py MODEL

MODEL is a folder, a GGUF file or an id on the Hugging Face hub.
"""

import sys

from pagetide_server import LLM, SamplingParams

if len(sys.argv) != 2:
    raise SystemExit(__doc__)
prompts = ["The capital of France is", "The tide", "Once upon a time"]
with LLM(sys.argv[1], max_model_len=2048) as llm:
    results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16))
for result in results:
    print(repr(result.prompt), "->", repr(result.outputs[0].text), f"({result.outputs[0].finish_reason})")
