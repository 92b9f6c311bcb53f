"""docs/tuning.md describes existing settings, each with a figure."""

import re
from pathlib import Path

import pytest

from pagetide_spec.config import EngineConfig

TEXT = (Path(__file__).parents[2] / "docs/tuning.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`[^\n]*\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
SETTINGS = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "swap_space_gib",
)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_has_advice_with_a_measured_ratio(name):
    assert name in EngineConfig.__dataclass_fields__
    assert re.search(r"\| \*{0,2}x [\d.]+\*{0,2}( \([\d.]+ to [\d.]+\))? \|", SECTIONS[name])
    assert re.search(r"^- ", SECTIONS[name], re.MULTILINE)


def test_a_claim_is_more_than_noise():
    """What is in bold has the same sign in every round."""
    ranges = re.findall(r"\*\*x ([\d.]+)\*\* \(([\d.]+) to ([\d.]+)\)", TEXT)
    assert len(ranges) >= len(SETTINGS)
    for found in ranges:
        ratio, least, most = map(float, found)
        assert least <= ratio * 1.02
        assert ratio <= most * 1.02
        assert most < 1 or least > 1, found


def test_every_setting_that_it_names_is_one():
    named = set(re.findall(r"`((?:max|gpu|swap|kv|enable|block|preemption)_\w+)`", TEXT))
    assert named
    assert named <= EngineConfig.__dataclass_fields__.keys()
