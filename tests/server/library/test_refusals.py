"""The `LLM` class: what is refused, by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagetide_server import LLM, SamplingParams
from pagetide_server.wire.messages import Structure
from pagetide_spec.errors import SettingError

from .calls import GREEDY, greedy, regex


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        pytest.param([[5, 384]], None, "prompt: 384: is no token id of this model; they go from 0 to 383", id="no id"),
        pytest.param([[5, -1]], None, "prompt: -1: is no token id", id="a negative id"),
        pytest.param([[5, True]], None, "prompt: True: is no token id", id="a bool among ids"),
        pytest.param([[5], [5.0]], None, "prompt: 5.0: is no token id", id="a float among ids"),
        pytest.param([[]], None, "prompt: []: is empty", id="an empty prompt"),
        pytest.param([None], None, "prompt: None: must be text or a list of token ids", id="no prompt"),
        pytest.param(
            [[5] * 512], None, "the model's context length is 512 tokens (max_model_len), the prompt has 512", id="long"
        ),
        pytest.param(
            [[5] * 513], greedy(max_tokens=0), "512 tokens (max_model_len), the prompt has 513", id="too long to score"
        ),
        pytest.param("\ud800", None, "prompt: '\\ud800': is no Unicode text", id="half a surrogate pair"),
        pytest.param(5, None, "prompts: 5: must be text, a list of token ids, or a list of these", id="a number"),
        pytest.param(None, None, "prompts: None: must be text, a list", id="None for the prompts"),
        pytest.param([[5]], [GREEDY] * 2, "params: '2 entries': must be one, or 1: one a prompt", id="too many params"),
        pytest.param([[5], [6]], [GREEDY], "params: '1 entries': must be one, or 2", id="too few params"),
        pytest.param([[5]], {"n": 3}, "params: {'n': 3}: must be SamplingParams", id="a mapping for params"),
    ],
)
def test_wrong_prompts_and_counts(llm, prompts, params, said):
    with pytest.raises(SettingError) as caught:
        llm.generate(prompts, params)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        pytest.param({"temperature": math.nan}, "temperature: nan: must be a finite number", id="NaN"),
        pytest.param({"temperature": math.inf}, "temperature: inf: must be a finite number", id="infinite"),
        pytest.param({"temperature": -0.1}, "temperature: -0.1: must lie between 0", id="negative"),
        pytest.param({"temperature": "hot"}, "temperature: 'hot': must be a number", id="text for a number"),
        pytest.param({"n": 10**9}, "n: 1000000000: must lie between 1 and 16", id="huge n"),
        pytest.param({"n": 0}, "n: 0: must lie between 1 and 16", id="no answer"),
        pytest.param({"n": 1.5}, "n: 1.5: must be a whole number", id="half an answer"),
        pytest.param({"n": True}, "n: True: must be a whole number", id="a bool for a number"),
        pytest.param({"n": 3, "best_of": 2}, "best_of: 2: must lie between 3 and 16", id="fewer than wanted"),
        pytest.param({"top_p": 0.0}, "top_p: 0.0: must be above 0", id="no probability at all"),
        pytest.param({"repetition_penalty": 0}, "repetition_penalty: 0.0: must lie between 1e-06", id="a penalty of 0"),
        pytest.param({"repetition_penalty": 1e-30}, "repetition_penalty: 1e-30: must lie", id="a penalty of no size"),
        pytest.param({"top_k": -2}, "top_k: -2: must lie between -1", id="top_k below -1"),
        pytest.param({"max_tokens": -1}, "max_tokens: -1: must lie between 0", id="a negative length"),
        pytest.param({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9: must lie between 0 and 8", id="min over max"),
        pytest.param({"logprobs": 21}, "logprobs: 21: must lie between 0 and 20", id="too many alternatives"),
        pytest.param({"seed": 2**63}, "seed: 9223372036854775808: must lie between", id="a seed beyond 64 bits"),
        pytest.param({"seed": "7"}, "seed: '7': must be a whole number or None", id="text for a seed"),
        pytest.param({"stop": [1]}, "stop: [1]: its entries must be text", id="a number to stop at"),
        pytest.param({"stop": ""}, "stop: '': an empty string is in every text", id="an empty stop"),
        pytest.param({"stop_token_ids": [999]}, "stop_token_ids: 999: is no token id", id="a stop outside"),
        pytest.param({"logit_bias": {"5": 1.0}}, "logit_bias: {'5': 1.0}: its keys must be a whole number", id="key"),
        pytest.param({"logit_bias": {5: 101.0}}, "logit_bias[5]: 101.0: must lie between -100", id="a bias too strong"),
        pytest.param({"logit_bias": {5: 10**400}}, "logit_bias: {5: 1000", id="a bias beyond a double"),
        pytest.param({"temperature": 10**400}, "must hold in a number of double precision", id="beyond a double"),
        pytest.param({"seed": 10**400}, "must lie between", id="a seed of 400 digits"),
        pytest.param({"temperature": np.array([1, 2])}, "temperature: array([1, 2]): must be a number", id="an array"),
        pytest.param({"stop": np.array([1, 2])}, "stop: array([1, 2]): must be a list", id="an array to stop at"),
        pytest.param(
            {"logit_bias": np.array([1])}, "logit_bias: array([1]): must be a mapping", id="an array of biases"
        ),
        pytest.param({"allowed_token_ids": [384]}, "allowed_token_ids: 384: is no token id", id="allowed outside"),
        pytest.param({"stop_token_ids": [10**30]}, "stop_token_ids: 1" + "0" * 30, id="a stop far outside"),
        pytest.param(
            {"bad_words_token_ids": [[]]}, "bad_words_token_ids: (): an empty sequence is in", id="empty word"
        ),
        pytest.param({"temperature": "\ud800"}, "temperature: '\\ud800': is no Unicode text", id="a torn character"),
        pytest.param({"stop": ["a", "\ud800"]}, "stop: '\\ud800': is no Unicode text", id="a torn stop"),
        pytest.param({"structure": "\ud800"}, "structure: '\\ud800': is no Unicode text", id="a torn structure"),
        pytest.param({"structure": regex("\ud800")}, "structure: '\\ud800': is no Unicode text", id="a torn regex"),
        pytest.param({"structure": {}}, "structure: {}: must be a Structure: its kind one of json, ", id="no kind"),
        pytest.param({"structure": regex({"type": "object"})}, "its value text", id="a structure of no text"),
        pytest.param({"structure": Structure(kind="bogus")}, "must be a Structure: its kind", id="an unknown kind"),
        pytest.param({"ignore_eos": 1}, "ignore_eos: 1: must be true or false", id="a number for a bool"),
    ],
)
def test_wrong_parameters(llm, params, said):
    with pytest.raises(SettingError) as caught:
        llm.generate([5, 6], SamplingParams(**params))
    assert said in str(caught.value)


def test_unknown_names(tiny_model):
    with pytest.raises(TypeError, match=r"SamplingParams has no field 'tempratur'; did you mean 'temperature'\?$"):
        SamplingParams(tempratur=0.5)
    with pytest.raises(TypeError, match=r"Structure has no field 'xyzzy'$"):
        Structure(kind="json_object", xyzzy=1)
    with pytest.raises(SettingError, match="max_num_seq: 4: no such setting; did you mean max_num_seqs"):
        LLM(str(tiny_model("llama")), max_num_seq=4)
    with pytest.raises(SettingError, match="block_size: 12: must be one of 8, 16, 32"):
        LLM(str(tiny_model("llama")), block_size=12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 1), ("host", "0.0.0.0"), ("api_key", "x"), ("shutdown_timeout_s", 3.0), ("max_body_mib", 1.0),
        ("tool_call_parser", "hermes"), ("max_queue_len", 5), ("served_model_name", "m"),
    ],
)  # fmt: skip
def test_settings_that_only_a_server_could_follow_are_refused_by_name(tiny_model, name, value):
    with pytest.raises(SettingError, match=f"^{name}: .* is a setting of a server, which LLM is not; leave it out"):
        LLM(str(tiny_model("llama")), **{name: value})
