"""What is found out of a network without its weights, and which kinds are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagetide_server.model.loader import dtype_of, load, max_context_length
from pagetide_server.model.network import Layer, examine
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

CONFIG = EngineConfig(model="some/model")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


def make(kind: str, **changes: object) -> object:
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **(SMALL | changes))


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        pytest.param("mamba", {}, "type linear_attention", id="Mamba has no attention"),
        pytest.param(
            "bloom", {"n_layer": 2, "n_head": 2}, "layers use the attention interface", id="Bloom has its own"
        ),
        pytest.param("bert", {}, "it is an encoder", id="BERT sees both sides"),
        pytest.param("bert", {"architectures": ["BertForMaskedLM"]}, "does not generate", id="BERT as it is published"),
        pytest.param("t5", {"d_model": 32}, "encoder-decoder", id="T5 has an encoder"),
        pytest.param(
            "qwen2", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention", id="linear attention"
        ),
        pytest.param(
            "lfm2", {"layer_types": ["conv", "full_attention"]}, "type conv", id="convolutions between layers"
        ),
        pytest.param(
            "gemma3_text", {"use_bidirectional_attention": True}, "it is an encoder", id="Gemma 3 as an embedding model"
        ),
        pytest.param("gpt_oss", {"num_key_value_heads": 1}, "s_aux", id="attention sinks"),
        pytest.param(
            "falcon", {"alibi": False}, "falcon models cannot be served", id="Falcon does not know the interface"
        ),
    ],
)
def test_refused_by_name_with_the_reason(kind: str, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        examine(make(kind, **changes), CONFIG)
    text = str(caught.value)
    assert text.startswith(f"model: 'some/model': {kind} models cannot be served: ")
    assert reason in text
    assert "\n" not in text


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_look_at_a_network_leaves_its_configuration_as_it_is(dtype: torch.dtype) -> None:
    hf_config: Any = make("llama", dtype=dtype, pad_token_id=0)
    before = hf_config.to_dict()
    examine(hf_config, CONFIG)
    assert hf_config.to_dict() == before
    assert dtype_of(hf_config, CONFIG, torch.device("cuda")) == dtype


def test_the_shape_of_a_network_with_windows() -> None:
    types = ["sliding_attention", "full_attention"]
    shape = examine(make("gemma2", layer_types=types, sliding_window=9, head_dim=8, num_key_value_heads=1), CONFIG)
    assert shape.layers == [Layer(1, 8, 8, window, 2, 256**-0.5, 50.0) for window in (9, None)]
    assert shape.vocab_size == 50
    assert not shape.relayed


def test_dynamic_rotary_frequencies_are_no_reason_to_refuse_a_model() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert len(examine(make("llama", rope_parameters=rope), CONFIG).layers) == 2


def test_parameters_count_tied_weights_once(tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(tiny_model("qwen3"))
    tied = examine(network.config, CONFIG)
    assert tied.parameters == sum(p.numel() for p in network.parameters())
    assert tied.embedded == 384 * 64
    parts = [p for n, p in network.named_parameters() if p.dim() == 2]
    assert tied.linear == (sum(p.numel() for p in parts), sum(p.shape[0] * -(-p.shape[1] // 32) for p in parts))


def test_layers_that_drop_keywords_are_relayed(tiny_model: Callable[[str], Path]) -> None:
    loaded = load(EngineConfig(model=str(tiny_model("stablelm"))))
    assert examine(loaded.hf_config, CONFIG).relayed


@pytest.mark.parametrize(
    ("asked", "found"),
    [pytest.param(None, 512, id="the model's own"), pytest.param(100, 100, id="a shorter one")],
)
def test_window(asked: int | None, found: int) -> None:
    assert max_context_length(make("llama", max_position_embeddings=512), EngineConfig(max_model_len=asked)) == found


def test_a_window_beyond_the_model_is_refused_with_both_numbers() -> None:
    with pytest.raises(SettingError, match="max_model_len: 1000: the model allows at most 512"):
        max_context_length(make("llama", max_position_embeddings=512), EngineConfig(max_model_len=1000))


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


def test_positions_that_change_with_the_batch_end_the_window_earlier() -> None:
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
    config = make("phi3", rope_parameters=LONGROPE, pad_token_id=0, **lengths)
    assert max_context_length(config, EngineConfig()) == 64
    with pytest.raises(SettingError, match="longest sequence of a batch; at most 64"):
        max_context_length(config, EngineConfig(max_model_len=65))


@pytest.mark.parametrize(
    ("asked", "device", "found"),
    [
        pytest.param("auto", "cpu", "float32", id="auto on a CPU"),
        pytest.param("auto", "cuda", "float16", id="auto on a GPU: the model's own"),
        pytest.param("bfloat16", "cpu", "bfloat16", id="as asked"),
    ],
)
def test_dtype(asked: str, device: str, found: str) -> None:
    import torch

    config = make("llama", dtype="float16")
    assert dtype_of(config, EngineConfig(dtype=asked), torch.device(device)) == getattr(torch, found)


def test_a_model_without_a_layer_for_logits_is_refused(
    loaded_tiny: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = loaded_tiny("llama")
    monkeypatch.setattr(type(loaded.network), "get_output_embeddings", lambda network: None)
    with pytest.raises(SettingError, match="llama models cannot be served: it has no layer that makes logits"):
        examine(loaded.hf_config, CONFIG)
