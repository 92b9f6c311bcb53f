"""docs/observability.md has the metrics that there are."""

from pathlib import Path

import pytest

from pagetide_spec.metrics import GATEWAY_METRICS, SERVER_METRICS, VLLM_METRICS
from pagetide_spec.reference import TABLES, main, renewed

PATH = Path(__file__).parents[2] / "docs/observability.md"


def test_the_generated_tables_are_the_codes():
    text = PATH.read_text("utf-8")
    assert renewed(text) == text, "run `make generate`"
    for name in (n for n in TABLES if n.endswith("-metrics")):
        assert f"<!-- generated: {name} -->" in text
    for metric in [*SERVER_METRICS.values(), *GATEWAY_METRICS.values()]:
        assert f"`{metric.full_name}" in text
    assert all(f"`{name}`" in text for name in VLLM_METRICS)


def test_a_changed_table_is_written_anew(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- generated: vllm-metrics -->\nold\n<!-- end -->\nafter\n")
    assert main([str(path)]) == 0
    text = path.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "vllm:num_requests_waiting" in text
    with pytest.raises(KeyError):
        renewed("<!-- generated: none-such -->\n<!-- end -->")
