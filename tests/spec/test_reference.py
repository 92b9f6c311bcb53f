"""docs/configuration.md is what the code generates, and docs/engine.md leaves no setting of the engine out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pagetide_spec.config import EngineConfig
from pagetide_spec.reference import renewed
from pagetide_spec.resource_table import spec_table
from pagetide_spec.schema import spec_schema
from pagetide_spec.setting import setting_of
from pagetide_spec.settings_table import settings_table

DOCS = Path(__file__).parents[2] / "docs"
ENGINE = [
    f.name for f in dataclasses.fields(EngineConfig) if setting_of(f).group in ("memory", "scheduling", "speculative")
]


@pytest.mark.parametrize(
    ("page", "sections"), [("configuration.md", ["settings"]), ("resource.md", ["spec", "rules", "status"])]
)
def test_the_page_is_what_the_code_generates(page, sections):
    written = (DOCS / page).read_text("utf-8")
    assert [s for s in sections if f"<!-- generated: {s} -->" not in written] == []
    assert renewed(written) == written, "run `make generate`"


def test_every_field_of_the_resource_has_one_row():
    rows = [line for line in spec_table().splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert len(set(names)) == len(names)
    assert set(spec_schema()["properties"]) <= {n.split(".")[1] for n in names}
    assert "spec.autoscaling.behavior.scaleDown.policies[].periodSeconds" in names
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_every_field_has_one_row():
    rows = [line for line in settings_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [f.name for f in dataclasses.fields(EngineConfig)]
    assert all(row.replace("\\|", "").count("|") == 8 for row in rows)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        pytest.param(
            "gpu_memory_utilization",
            "| `gpu_memory_utilization` | `--gpu-memory-utilization` | `PAGETIDE_GPU_MEMORY_UTILIZATION` | "
            "`gpuMemoryUtilization` | number above 0, at most 1 | 0.9 |",
            id="a number with limits",
        ),
        pytest.param("block_size", "| 8, 16, 32 | 16 |", id="choices"),
        pytest.param("max_num_seqs", "| whole number at least 1, at most 65536 | 256 on GPU, 64 on CPU |", id="unset"),
        pytest.param("port", "`PAGETIDE_PORT` | - |", id="of the process only"),
        pytest.param("revision", "`PAGETIDE_REVISION` | `spec.model` |", id="of the model"),
        pytest.param("log_blocks", "| true, false | false |", id="a switch"),
    ],
)
def test_rows(name, row):
    (found,) = [line for line in settings_table().splitlines() if line.startswith(f"| `{name}` ")]
    assert row in found


@pytest.mark.parametrize("name", [*ENGINE, "max_model_len", "dtype", "seed", "quantization"])
def test_what_each_setting_does_is_told(name):
    assert f"`{name}`" in (DOCS / "engine.md").read_text("utf-8")
