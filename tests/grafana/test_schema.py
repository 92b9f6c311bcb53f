"""The dashboards hold to Grafana's own schema: read through the types of its foundation SDK, nothing is lost, and every
value is of the type that the schema gives it.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from typing import Any

import pytest

from pagetide_dashboards.files import DASHBOARDS
from pagetide_dashboards.grafana_json import dashboard_json

encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason="needs grafana-foundation-sdk")
plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
schema = pytest.importorskip("grafana_foundation_sdk.models.dashboard")

BOARDS = [pytest.param(dashboard_json(board), id=board.uid) for board in DASHBOARDS]


@pytest.fixture(scope="module", autouse=True)
def known_panels() -> None:
    """The options of each kind of panel, and Prometheus' queries, are typed as well."""
    plugins.register_default_plugins()


def read_again(board: dict[str, Any]) -> Any:
    return json.loads(encoder.JSONEncoder().encode(schema.Dashboard.from_json(board)))


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of what the schema does not know: keys that are gone, values that have changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [p for key, value in before.items() for p in lost(value, after.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [p for i, (a, b) in enumerate(zip(before, after, strict=True)) for p in lost(a, b, f"{path}[{i}]")]
    return [] if before == after else [path]


@pytest.mark.parametrize("board", BOARDS)
def test_the_schema_knows_all_of_a_dashboard(board: dict[str, Any]) -> None:
    assert lost(board, read_again(board)) == []


def wrong(value: Any, hint: Any, path: str = "") -> list[str]:
    """Paths of values that are not of their type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or hint is type(value):
        return members(value, path)
    if origin in (typing.Union, types.UnionType):
        return min((wrong(value, one, path) for one in arguments), key=len)
    if origin is list and isinstance(value, list):
        return [p for i, one in enumerate(value) for p in wrong(one, arguments[0], f"{path}[{i}]")]
    if origin is dict and isinstance(value, dict):
        return [p for key, one in value.items() for p in wrong(one, arguments[1], f"{path}.{key}")]
    if origin is typing.Literal:
        return [] if value in arguments else [path]
    if hint is types.NoneType or hint is None:
        return [] if value is None else [path]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [] if value in [one.value for one in hint] else [path]
    if hint is float and type(value) is int:
        return []
    if isinstance(hint, type) and isinstance(value, dict) and hasattr(hint, "from_json"):
        return wrong(hint.from_json(value), hint, path)
    is_one = isinstance(hint, type) and isinstance(value, hint)
    return members(value, path) if is_one else [path]


def members(value: Any, path: str) -> list[str]:
    """The same of the fields of an object of the SDK."""
    if not hasattr(value, "from_json"):
        return []
    hints = typing.get_type_hints(type(value))
    return [p for name, one in vars(value).items() if one is not None and name in hints
            for p in wrong(one, hints[name], f"{path}.{name}")]  # fmt: skip


@pytest.mark.parametrize("board", BOARDS)
def test_every_value_is_of_its_type(board: dict[str, Any]) -> None:
    assert wrong(schema.Dashboard.from_json(board), schema.Dashboard) == []


@pytest.mark.parametrize(
    ("where", "value", "path"),
    [
        pytest.param("refresh", 10, ".refresh", id="a number for a text"),
        pytest.param("graphTooltip", 7, ".graph_tooltip", id="none of those there are"),
        pytest.param("tags", ["a", 3], ".tags[1]", id="within a list"),
    ],
)
def test_a_wrong_value_is_found(where: str, value: Any, path: str) -> None:
    board = {**dashboard_json(DASHBOARDS[0]), where: value}
    assert wrong(schema.Dashboard.from_json(board), schema.Dashboard) == [path]


def test_an_unknown_key_is_found() -> None:
    board = dashboard_json(DASHBOARDS[0])
    board["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert lost(board, read_again(board)) == [".panels[1].fieldConfig.defaults.units"]
