"""What a network is like, found out without its weights: built on torch's meta device and called once.

The call shows for every layer what reaches the attention interface, so that a model that does not use it, or uses it
in a way that paged attention does not know, is refused by name before any weight is read.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

from pagetide_kernels.packed_linear import GROUP
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

from .attention import ATTENTION_NAME, HARMLESS, AttentionCall, PagedKeywordLost, register, relay
from .rotary import settle_frequencies

PLAIN_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One attention layer: its KV heads and their sizes, the window that it uses (None: all keys), and its queries."""

    kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None
    heads: int
    scale: float
    soft_cap: float | None


@dataclasses.dataclass(frozen=True)
class Shape:
    """A network without its weights.

    parameters: number of distinct weights (tied ones once). embedded: those of the embedding and the logits' matrix.
    linear: numbers of weights of all linear layers, and of groups that share a scale in int8, tied ones once. relayed:
    its layers drop unknown keywords, so that the batch must reach attention through `attention.relay`.
    """

    layers: list[Layer]
    parameters: int
    embedded: int
    linear: tuple[int, int]
    vocab_size: int
    relayed: bool


class _Recorder:
    """Answers attention calls with nothing but the shape, and remembers them by layer."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}
        self.faults: list[str] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See `attention.Attends`."""
        query, key, value = call.query, call.key, call.value
        index = getattr(call.layer, "layer_idx", None)
        unknown = sorted(k for k, v in call.others.items() if v is not None and k not in HARMLESS)
        if index is None:
            self.faults.append("its attention layers have no layer_idx")
        elif index in self.layers:
            self.faults.append(f"layer {index} attends twice")
        if unknown:
            self.faults.append(f"its attention needs {', '.join(unknown)}")
        if getattr(call.layer, "is_causal", True) is False:
            self.faults.append("its attention is not causal: it is an encoder")
        if key.shape[0] != query.shape[0]:
            self.faults.append("it attends to keys from elsewhere")
        sizes = (key.shape[1], key.shape[2], value.shape[2], call.sliding_window)
        self.layers[index or 0] = Layer(*sizes, query.shape[1], call.scale, call.soft_cap)
        return query.new_empty(*query.shape[:2], value.shape[2])


def examine(hf_config: Any, config: EngineConfig) -> Shape:
    """The shape of the network that `hf_config` describes.

    Raises:
        SettingError: it cannot be served, with the model's name and the reason.
    """
    kind = getattr(hf_config, "model_type", "?")
    if problem := _stated_problem(hf_config):
        raise _refused(config, kind, problem)
    network = _on_meta(hf_config, config, kind)
    settle_frequencies(network)
    expect_no_padding(network)
    recorder, relayed = _Recorder(), False
    try:
        try:
            _call(network, recorder)
        except PagedKeywordLost:
            relayed = True
            relay(network)
            _call(network, recorder)
    except SettingError:
        raise
    except Exception as error:
        raise _refused(config, kind, f"its forward pass fails: {type(error).__name__}: {error}") from error
    layers = _checked_layers(recorder, hf_config, config, kind)
    if (head := network.get_output_embeddings()) is None:
        raise _refused(config, kind, "it has no layer that makes logits")
    ends = {id(e.weight): e.weight.numel() for e in (network.get_input_embeddings(), head)}
    parameters = sum(p.numel() for p in network.parameters())
    return Shape(layers, parameters, sum(ends.values()), _linear(network), head.weight.shape[0], relayed)


def expect_no_padding(network: Any) -> None:
    """Keep a network from looking for the padding token in its input, for which the host would wait for the device."""
    network.config.pad_token_id = None


def _linear(network: Any) -> tuple[int, int]:
    """(weights, groups of a scale) of the linear layers"""
    found = {id(m.weight): m.weight for m in network.modules() if type(m) is torch.nn.Linear}
    return sum(w.numel() for w in found.values()), sum(w.shape[0] * -(-w.shape[1] // GROUP) for w in found.values())


def _stated_problem(hf_config: Any) -> str | None:
    """Why the configuration alone rules the model out, or None."""
    types = set(getattr(hf_config, "layer_types", None) or ())
    if strange := sorted(types - PLAIN_LAYER_TYPES):
        return f"it has layers of type {', '.join(strange)}"
    if getattr(hf_config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model"
    if getattr(hf_config, "use_bidirectional_attention", False) or getattr(hf_config, "is_causal", True) is False:
        return "its attention is not causal: it is an encoder"
    if getattr(hf_config, "num_kv_shared_layers", 0):
        return "its layers share keys and values"
    names = getattr(hf_config, "architectures", None) or []
    if names and not any(n.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration")) for n in names):
        return f"{names[0]} does not generate text"
    return None


def _on_meta(hf_config: Any, config: EngineConfig, kind: str) -> Any:
    from transformers import AutoModelForCausalLM

    register()
    try:
        with torch.device("meta"):
            # bfloat16: on the meta device some ops of mixture-of-experts models check for it.
            network: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                copy.deepcopy(hf_config),  # it writes the type into what it gets, and `auto` asks for the model's own
                attn_implementation=ATTENTION_NAME,
                dtype=torch.bfloat16,
                trust_remote_code=config.trust_remote_code,
            )
    except Exception as error:
        raise _refused(config, kind, f"transformers cannot build it: {error}") from error
    return network.eval()


def _call(network: Any, recorder: _Recorder) -> None:
    ids = torch.zeros(1, 3, dtype=torch.long, device="meta")
    keep = torch.zeros(1, dtype=torch.long, device="meta")
    with torch.inference_mode():
        network(input_ids=ids, position_ids=ids, use_cache=False, logits_to_keep=keep, paged=recorder)


def _checked_layers(recorder: _Recorder, hf_config: Any, config: EngineConfig, kind: str) -> list[Layer]:
    text = hf_config.get_text_config()
    if recorder.faults:
        raise _refused(config, kind, recorder.faults[0])
    count = text.num_hidden_layers
    if not count:
        raise _refused(config, kind, "its config.json says that it has no layers")
    if sorted(recorder.layers) != list(range(count)):
        raise _refused(config, kind, f"only {len(recorder.layers)} of its {count} layers use the attention interface")
    for index, name in enumerate(getattr(text, "layer_types", None) or ()):
        if (name == "sliding_attention") != (recorder.layers[index].sliding_window is not None):
            raise _refused(config, kind, f"layer {index} is {name} but says otherwise to the attention interface")
    return [recorder.layers[i] for i in range(count)]


def _refused(config: EngineConfig, kind: str, reason: str) -> SettingError:
    line = " ".join(reason.split())[:200]
    return SettingError("model", config.model, f"{kind} models cannot be served: {line}")
