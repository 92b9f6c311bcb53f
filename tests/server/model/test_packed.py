"""Models on packed weights of 32, 16 and 8 bits, on the C++ ops and without them."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagetide_server.model.cpu_layers import CpuLayer
from pagetide_server.model.loader import LoadedModel, check_quantization, load
from pagetide_server.model.packed import PackedLinear
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

Load = Callable[..., LoadedModel]
Toy = types.SimpleNamespace
KINDS = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "olmo2", "mixtral"]


def prompts() -> list[list[int]]:
    chance = random.Random(6)
    return [[chance.randrange(8, 380) for _ in range(n)] for n in (5, 1, 40)]


def logits(loaded: LoadedModel, prompt: list[int], toy: Toy) -> torch.Tensor:
    """Of all positions of a prompt: [tokens, vocab]."""
    runner = toy.poisoned_runner(loaded, 8, 16)
    sequence = toy.make_sequence(prompt, [3, 1, 5], prompt_logprobs=1)
    from pagetide_server.engine.sequence import Row, Step

    return runner.execute(Step([Row(sequence, 0, len(prompt), samples=True)])).prompt[0]


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3"])
def test_known_layers_are_swapped_whole(kind: str, loaded_tiny: Load) -> None:
    network = loaded_tiny(kind).network
    assert all(type(layer) is CpuLayer for layer in network.base_model.layers)
    assert type(network.get_output_embeddings()) is PackedLinear
    assert not [n for n, m in network.named_modules() if type(m) is torch.nn.Linear]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_bits_come_near_to_float32(kind: str, dtype: str, loaded_tiny: Load, toy: Toy) -> None:
    prompt = prompts()[2]
    loaded = loaded_tiny(kind, dtype=dtype)
    assert (loaded.dtype, loaded.cache_dtype) == (getattr(torch, dtype),) * 2
    error = relative_error(logits(loaded, prompt, toy), logits(loaded_tiny(kind), prompt, toy))
    # (Experts are chosen again where two are nearly equal, so those of a mixture differ more.)
    assert 0 < error < {"float16": 0.01, "bfloat16": 0.06}[dtype] * (6 if kind == "mixtral" else 1)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "olmo2", "gpt-neox"])
def test_eight_bits_come_near_to_float32(
    kind: str, kernels: str, loaded_tiny: Load, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompts()[2]
    exact = logits(loaded_tiny(kind), prompt, toy)
    monkeypatch.setenv("PAGETIDE_KERNELS", kernels)
    loaded = loaded_tiny(kind, quantization="int8")
    assert (loaded.dtype, loaded.cache_dtype) == (torch.float32, torch.bfloat16)
    assert not [n for n, m in loaded.network.named_modules() if type(m) is torch.nn.Linear]
    # Random weights of large spread, in which errors grow from layer to layer.
    assert 0 < relative_error(logits(loaded, prompt, toy), exact) < 0.12


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize("quantization", ["auto", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_answer_does_not_depend_on_its_batch(quantization: str, dtype: str, loaded_tiny: Load, toy: Toy) -> None:
    loaded = loaded_tiny("gemma3", quantization=quantization, dtype=dtype)
    together = toy.answers(loaded, prompts(), 12)
    assert together == [toy.answers(loaded, [prompt], 12)[0] for prompt in prompts()]
    assert together == toy.answers(loaded, prompts(), 12, block_size=8, chunk=7)


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_float32_from_files_of_16_bits_keeps_them_and_loses_nothing(
    kind: str, stored: torch.dtype, tiny_model: Callable[[str], Path], tmp_path: Path, toy: Toy
) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tiny_model(kind), dtype=stored).save_pretrained(tmp_path / "narrow")
    wide = AutoModelForCausalLM.from_pretrained(tmp_path / "narrow", dtype=torch.float32)
    wide.save_pretrained(tmp_path / "wide")
    narrow, exact = (load(EngineConfig(model=str(tmp_path / name))) for name in ("narrow", "wide"))
    heads = [loaded.network.get_output_embeddings().packed for loaded in (narrow, exact)]
    assert [head.data.dtype for head in heads] == [stored, torch.float32]
    assert narrow.dtype == torch.float32
    assert torch.equal(logits(narrow, prompts()[2], toy), logits(exact, prompts()[2], toy))


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["gemma3", "gemma2"])
def test_a_networks_own_constants_are_not_rounded_to_its_files_type(
    kind: str, tied: bool, tiny_model: Callable[[str], Path], tmp_path: Path, toy: Toy
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    # The root of its width is what its embedding is scaled by; no number of 16 bits is the root of 60.
    config = AutoConfig.from_pretrained(tiny_model(kind), hidden_size=60, tie_word_embeddings=tied)
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    loaded = load(EngineConfig(model=str(tmp_path)))
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompt = prompts()[2]
    with torch.inference_mode():
        expected = exact(torch.tensor([prompt])).logits[0]
    assert relative_error(logits(loaded, prompt, toy), expected) < 1e-5


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3-moe", "gpt2", "biogpt", "llama"])
def test_a_shared_embedding_is_of_the_type_of_the_layers_behind_it(
    kind: str, quantization: str, tiny_model: Callable[[str], Path], tmp_path: Path, toy: Toy
) -> None:
    """Layers that are not all packed keep their 16 bits, and refuse float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(tiny_model(kind), tie_word_embeddings=True)
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    narrow, exact = (
        load(EngineConfig(model=str(tmp_path), dtype=dtype, quantization=quantization))  # type: ignore[arg-type]
        for dtype in ("bfloat16", "float32")
    )
    assert relative_error(*(logits(loaded, prompts()[0], toy) for loaded in (narrow, exact))) < 0.1


@pytest.mark.parametrize(
    ("quantization", "device", "stated", "problem"),
    [
        pytest.param("int8", "cuda", None, "built for the CPU only", id="int8 on a GPU"),
        pytest.param("int8", "cpu", {"quant_method": "gptq"}, r"quantized \(gptq\); set it to auto", id="int8 of GPTQ"),
        pytest.param("none", "cpu", {"quant_method": "awq"}, r"quantized \(awq\); set it to auto", id="none of AWQ"),
    ],
)
def test_a_quantization_that_cannot_be_is_refused(
    quantization: str, device: str, stated: dict[str, str] | None, problem: str
) -> None:
    hf_config = types.SimpleNamespace(quantization_config=stated)
    config = EngineConfig(model="m", quantization=quantization)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=problem):
        check_quantization(hf_config, config, torch.device(device))


@pytest.mark.real_model
@pytest.mark.slow
def test_the_real_model(gemma_gguf: Path, toy: Toy) -> None:
    chance = random.Random(1)
    texts = [[2, *(chance.randrange(1000, 30000) for _ in range(n))] for n in (12, 60)]
    exact = load(EngineConfig(model=str(gemma_gguf), max_model_len=512))
    from pagetide_server.checkpoint.files import resolve

    folder = resolve(EngineConfig(model=str(gemma_gguf)))
    assert toy.answers(exact, texts, 16) == toy.expected_answers(folder, texts, 16)
    expected = logits(exact, texts[1][:40], toy)
    for settings, most in (({"dtype": "float16"}, 0.005), ({"quantization": "int8"}, 0.08)):
        loaded = load(EngineConfig(model=str(gemma_gguf), max_model_len=512, **settings))
        assert 0 < relative_error(logits(loaded, texts[1][:40], toy), expected) < most
