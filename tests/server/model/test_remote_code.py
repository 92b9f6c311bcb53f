"""Models that come with their own Python code, whose layers may have the names of others."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig

COMMON = """
import torch
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as known

class OwnConfig(LlamaConfig):
    model_type = "very_own"

class OwnForCausalLM(known.LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for i in range(config.num_hidden_layers):
            self.change(i)
        self.post_init()
"""
LAYER = """
    def change(self, i):
        self.model.layers[i] = LlamaDecoderLayer(self.config, i)

class LlamaDecoderLayer(known.LlamaDecoderLayer):
    def forward(self, hidden_states, **others):
        return 0.5 * super().forward(hidden_states, **others) + 0.1
"""
MLP = """
    def change(self, i):
        self.model.layers[i].mlp = LlamaMLP(self.config)

class LlamaMLP(known.LlamaMLP):
    def forward(self, x):
        return super().forward(x) + x
"""


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    "change", [pytest.param(LAYER, id="a layer of a known name"), pytest.param(MLP, id="a part of a known layer")]
)
def test_what_a_model_calls_by_a_known_name_is_computed_by_its_own_code(
    change: str, tiny_model: Callable[[str], Path], tmp_path: Path, toy: types.SimpleNamespace
) -> None:
    from transformers import AutoModelForCausalLM

    for file in tiny_model("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "modeling_own.py").write_text(COMMON + change)
    config = json.loads((tmp_path / "config.json").read_text())
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    changes = {"model_type": "very_own", "architectures": ["OwnForCausalLM"], "auto_map": classes}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))

    exact = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.float32).eval()
    prompt = [5, 9, 100, 33]
    with torch.inference_mode():
        expected = exact.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    loaded = load(EngineConfig(model=str(tmp_path), trust_remote_code=True))
    assert toy.answers(loaded, [prompt], 8) == [expected[0, 4:].tolist()]
