"""From settings to the scheduler's limits on a real tiny model, and what is said of them at start."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

from pagetide_server import LLM, factory
from pagetide_server.factory import create_core
from pagetide_server.model.loader import load
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

# The tiny Llama: 384 bytes a token, 6,144 a block of 16; its window is 512 tokens.
BLOCK_GIB = 6144 / 2**30


@pytest.fixture
def ready(tiny_model, caplog):
    """`ready(**settings)`: what the engine says of itself; its log lines are in `caplog`."""
    caplog.set_level(logging.INFO, "pagetide_server")

    def make(**settings):
        core = create_core(EngineConfig(model=str(tiny_model("llama")), **settings), lambda stage, fraction: None)
        core.close()
        return core.ready

    return make


@pytest.mark.parametrize(
    ("settings", "window", "said"),
    [
        pytest.param({"kv_cache_memory_gib": 40 * BLOCK_GIB}, 512, None, id="all of the model's"),
        pytest.param(
            {"kv_cache_memory_gib": 5.5 * BLOCK_GIB},
            80,
            "max_model_len is 80, which is all that the KV cache holds; the model allows 512: raise "
            "kv_cache_memory_gib to at least 0.001 for it",
            id="what the memory holds",
        ),
        pytest.param({"kv_cache_memory_gib": 5.5 * BLOCK_GIB, "max_model_len": 70}, 70, None, id="what was asked for"),
    ],
)
def test_the_window_is_what_can_be_served(ready, caplog, settings, window, said):
    assert ready(**settings).max_model_len == window
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (said is not None)
    assert all(line.startswith(said) for line in warnings)


@pytest.mark.parametrize(
    ("kind", "settings", "way_out"),
    [
        pytest.param("cpu", {}, "raise kv_cache_memory_gib to at least 0.001 for it", id="a CPU"),
        pytest.param("cuda", {}, "to at least 0.001, or gpu_memory_utilization, for it", id="a share of a GPU"),
        pytest.param("cuda", {"kv_cache_memory_gib": 1.0}, "to at least 0.001 for it", id="a stated size on a GPU"),
    ],
)
def test_a_short_window_names_what_would_lengthen_it(kind, settings, way_out, tiny_model, caplog):
    config = EngineConfig(model=str(tiny_model("llama")), kv_cache_memory_gib=5.5 * BLOCK_GIB)
    loaded = load(config)
    limits = factory.scheduler_config(config, loaded, factory.measure(loaded))
    loaded = dataclasses.replace(loaded, device=torch.device(kind))
    factory.log_limits(EngineConfig(**settings), loaded, limits)
    assert caplog.messages[-1].endswith(way_out)


def test_a_window_that_was_asked_for_and_does_not_fit_is_refused(ready):
    with pytest.raises(SettingError, match="max_model_len to at most 80"):
        ready(kv_cache_memory_gib=5.5 * BLOCK_GIB, max_model_len=81)


@pytest.mark.parametrize(
    ("settings", "tokens", "warned"),
    [
        pytest.param({"max_num_batched_tokens": 100}, 100, False, id="prompts in pieces"),
        pytest.param({"enable_chunked_prefill": False}, 2048, False, id="whole prompts, the usual step"),
        pytest.param({"enable_chunked_prefill": False, "max_num_batched_tokens": 100}, 100, True, id="a smaller step"),
    ],
)
def test_a_step_that_is_smaller_than_a_prompt_may_be(ready, caplog, settings, tokens, warned):
    assert ready(kv_cache_memory_gib=0.01, **settings).max_num_batched_tokens == tokens
    assert ("prompts of more than 100 tokens will be refused" in caplog.text) == warned
    assert ("raise max_num_batched_tokens to 512" in caplog.text) == warned


def test_the_cache_and_the_measured_speeds_are_logged(ready, caplog):
    ready(kv_cache_memory_gib=10 * BLOCK_GIB, swap_space_gib=0.001)
    (line,) = [r for r in caplog.records if r.getMessage().startswith("KV cache: 10 blocks of 16 tokens")]
    copying, computing = line.args[-2:]
    # A tiny model on any machine: memory moves at least 10 MB/s, and a token is far from a second's work.
    assert copying > 1e7
    assert computing > 1e3


@pytest.fixture
def no_weights(monkeypatch):
    """Whoever loads weights has come too far."""

    def load(config, progress):
        raise AssertionError("the weights are being loaded")

    monkeypatch.setattr(factory, "load", load)


def test_a_tokenizer_that_cannot_be_had_is_told_before_weights_are_read(tiny_model, tmp_path, no_weights):
    with pytest.raises(SettingError, match=r"tokenizer: .* has no tokenizer\.json"):
        create_core(EngineConfig(model=str(tiny_model("llama")), tokenizer=str(tmp_path)), lambda stage, part: None)


def test_a_start_tells_its_phases_from_the_kernels_on(tiny_model, monkeypatch):
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")  # which pack no weights; see below
    stages = []
    config = EngineConfig(model=str(tiny_model("llama")), kv_cache_memory_gib=10 * BLOCK_GIB, swap_space_gib=0.001)
    create_core(config, lambda stage, part: stages.append(stage), warm=False).close()
    assert list(dict.fromkeys(stages)) == [
        "preparing kernels (a first start compiles them)", "loading libraries", "building the network",
        "loading weights",
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU's network is packed")
@pytest.mark.parametrize("kernels", ["cpp", "torch"])
def test_packing_is_counted_by_layers(kernels, tiny_model, monkeypatch):
    """Of three layers, by whole ones where the C++ ops run, else by matrices."""
    monkeypatch.setenv("PAGETIDE_KERNELS", kernels)
    told = []
    config = EngineConfig(model=str(tiny_model("llama")), quantization="int8")
    load(config, lambda stage, part: told.append(part) if stage.startswith("packing") else None)
    assert (told[0], told[-1]) == (0, 1)
    assert told == sorted(told)
    assert len(set(told[1:-1])) >= 3


def test_the_library_reads_its_tokenizer_once(tiny_model, monkeypatch):
    read, from_folder = [], Tokenizer.from_folder

    def counted(*args):
        read.append(args)
        return from_folder(*args)

    monkeypatch.setattr(Tokenizer, "from_folder", counted)
    LLM(str(tiny_model("llama")), kv_cache_memory_gib=0.01).close()
    assert len(read) == 1


@pytest.mark.parametrize(
    ("warm", "times"),
    [
        pytest.param(True, 1, id="a server: ready for the first structured request, and the first drawn token"),
        pytest.param(False, 0, id="a library: most programs ask for none, and nothing computes beside their prompts"),
    ],
)
def test_what_only_some_requests_need_is_made_at_start_only_where_it_is_expected(warm, times, tiny_model, monkeypatch):
    made, drawing = [], []
    monkeypatch.setattr(factory.StructureCompiler, "warm_up", lambda self: made.append(self))
    monkeypatch.setattr(factory.Sampler, "warm_up", lambda self: drawing.append(self))
    config = EngineConfig(model=str(tiny_model("llama")))
    create_core(config, lambda stage, fraction: None, warm=warm).close()
    assert len(made) == len(drawing) == times


@pytest.mark.parametrize(("kind", "name"), [("cuda", "NVIDIA H200"), ("cpu", "cpu")])
def test_the_device_is_reported_by_its_name_and_its_kind(kind, name, tiny_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    config = EngineConfig(model=str(tiny_model("llama")))
    loaded = load(config)
    limits = factory.scheduler_config(config, loaded, factory.measure(loaded))
    ready = factory.ready_of(limits, dataclasses.replace(loaded, device=torch.device(kind)))
    assert (ready.device, ready.device_type) == (name, kind)
