"""`pagetide bench`: traces that are read."""

from __future__ import annotations

import dataclasses

import pytest

from pagetide_spec.errors import SettingError
from pagetide_spec.traces import Row, parse

MOONCAKE = """\
{"timestamp": 2500, "input_length": 7, "output_length": 3, "hash_ids": [4, 5]}

{"timestamp": 1000, "input_length": 5, "output_length": 0, "hash_ids": []}
"""
LATE = '{"timestamp": 1e15, "input_length": 1, "output_length": 1}'
LONG = '{"timestamp": 0, "input_length": 10000000000, "output_length": 1}'
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:59.5000000,374,44
2023-11-16 18:16:00.7500000,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param(MOONCAKE, [Row(0, 5, 1), Row(1.5, 7, 3, (4, 5))], id="Mooncake, out of order, with an empty line"),
        pytest.param(AZURE, [Row(0, 374, 44), Row(1.25, 396, 109)], id="Azure, over the minute"),
        pytest.param(AZURE_2024, [Row(0, 2162, 5), Row(0.99007, 2399, 6)], id="Azure of 2024, whose times have a zone"),
    ],
)
def test_a_trace_is_read(text, rows):
    found = parse(text, "t")
    assert [row.at for row in found] == pytest.approx([row.at for row in rows], abs=1e-6)
    assert [dataclasses.replace(row, at=0) for row in found] == [dataclasses.replace(row, at=0) for row in rows]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("a,b\n1,2\n", "must be JSON lines, or CSV with the columns", id="other columns"),
        pytest.param(AZURE + "yesterday,1,2\n", "line 4:", id="no time"),
        pytest.param(AZURE + "2023-11-16 18:16:01,1\n", "line 4: has fewer columns", id="a column is missing"),
        pytest.param("x" * 200_000 + ",1,2", "line 1: field larger", id="an endless cell of the heading"),
        pytest.param(AZURE + "x" * 200_000 + ",1,2", "line 4: field larger", id="an endless cell"),
        pytest.param(MOONCAKE + '{"timestamp": 1}', "line 4: Object missing required field", id="a field is missing"),
        pytest.param('{"timestamp": 1, "input_length": 0, "output_length": 1}', "line 1: lengths", id="no input"),
        pytest.param("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests", id="a heading alone"),
        pytest.param(f"{MOONCAKE}{LATE}", r"spans 1.16e\+07 days", id="times in another unit"),
        pytest.param(LONG, "line 1: lengths must be at most 1000000000", id="a prompt of more than any model takes"),
    ],
)
def test_a_wrong_trace_is_told_by_its_line(text, problem):
    with pytest.raises(SettingError, match=problem):
        parse(text, "t")
