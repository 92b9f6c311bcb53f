"""What a reader of dashboards and runbook can turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from pagetide_dashboards.files import ROOT
from pagetide_gateway.access.key_file import FIELDS
from pagetide_spec.schema import spec_schema


def below(schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """(name, whether it holds a value and no further fields) of every field."""
    for name, node in schema.get("properties", {}).items():
        yield name, "properties" not in node
        yield from below(node)
        yield from below(node.get("items", {}))


def paths(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Of every value of the chart: `operator.replicas`."""
    for name, value in values.items():
        yield from paths(value, f"{at}{name}.") if isinstance(value, dict) and value else (at + name,)


@pytest.fixture(scope="session")
def parameters() -> set[str]:
    """Fields of `spec` that hold a value, by name, and values of the chart, by path."""
    values = yaml.safe_load((ROOT / "charts/pagetide/values.yaml").read_text())
    return {name for name, has_value in below(spec_schema()) if has_value} | set(paths(values))


@pytest.fixture(scope="session")
def camel_names() -> set[str]:
    """Whatever may be written in camelCase: fields of `spec` and of an API key, last names of the chart's values."""
    values = yaml.safe_load((ROOT / "charts/pagetide/values.yaml").read_text())
    of_chart = {path.rpartition(".")[2] for path in paths(values)}
    return {name for name, _ in below(spec_schema())} | set(FIELDS) | of_chart
