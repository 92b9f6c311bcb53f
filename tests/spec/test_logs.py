"""The log of a program in its two forms, and that gateway and operator have them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pagetide_gateway.options import parser as gateway_parser
from pagetide_operator.main import parser as operator_parser

SAY = """
import logging, sys, warnings
from pagetide_spec.logs import set_up_logging
set_up_logging(*sys.argv[1:])
logging.getLogger("some.part").info("moved %d", 3, extra={"service": "chat"})
logging.getLogger("some.part").warning("careful")
warnings.warn("outdated", DeprecationWarning, stacklevel=1)
"""


def said(level: str, form: str) -> list[str]:
    command = [sys.executable, "-W", "always", "-c", SAY, level, form]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr.splitlines()


def test_json_lines_carry_fields_of_their_own() -> None:
    first, second, third = [json.loads(line) for line in said("info", "json")]
    assert first.items() >= {"level": "info", "logger": "some.part", "message": "moved 3", "service": "chat"}.items()
    assert second["message"] == "careful"
    assert "outdated" in third["message"]


def test_text_lines_and_the_level() -> None:
    lines = said("warning", "text")
    assert [line for line in lines if line.endswith("WARNING some.part careful")]
    assert not [line for line in lines if "moved" in line]


@pytest.mark.parametrize("parser", [gateway_parser, operator_parser], ids=["gateway", "operator"])
def test_programs_have_the_flags(parser) -> None:
    args = parser().parse_args(["--log-format", "json", "--log-level", "debug"])
    assert (args.log_format, args.log_level) == ("json", "debug")
    assert (parser().parse_args([]).log_format, parser().parse_args([]).log_level) == ("text", "info")
