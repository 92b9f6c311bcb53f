"""The command line of the gateway, and the metrics that its documentation names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagetide_gateway.main import _only_word, main
from pagetide_gateway.options import registry_of
from pagetide_spec.errors import SettingError
from pagetide_spec.metrics import GATEWAY_METRICS


@pytest.mark.parametrize(
    "text",
    [
        *("m", "m=", "=http://a", "m=a:80", "m=https://a", "m=http://", "m=http://a:x", "m=http://a,ftp://b"),
        *("m=http://a/v2", "m=http://a/v1/models", "m=http://a?b", "m=http://a,http://b#c"),
    ],
)
def test_a_wrong_service_flag_is_named(text, capsys):
    assert main(["--service", text, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--service" in error
    assert text in error


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param("--port", "99999", id="no such port"),
        pytest.param("--host", "a" * 70 + ".example", id="a label of a name that is too long"),
        pytest.param("--host", "256.1.1.1", id="no such address"),
    ],
)
def test_where_it_cannot_listen_is_named(flag, value, capsys):
    assert main([flag, value]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{flag}: " in error
    assert value in error


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_a_drain_takes_a_number_of_seconds(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([f"--drain-seconds={value}"])
    assert f"--drain-seconds: '{value}': must be a number of seconds" in capsys.readouterr().err


def test_a_stall_is_at_least_a_second(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--stall-seconds=0.001"])
    assert "--stall-seconds: '0.001': must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_with_the_replicas_key(encoding, tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-upstream\n", encoding=encoding)
    assert _only_word(path) == "sk-upstream"


def test_the_documented_metrics_are_those_there_are():
    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    documented = re.findall(r"`(pagetide_gateway_\w+)(?:\{(\w+)\})?`", text)
    assert documented == [(m.full_name, ",".join(m.labels)) for m in GATEWAY_METRICS.values()]


def test_service_flags_become_replicas():
    registry = registry_of(["m=http://a:1,http://b:2/", "org/n=http://c"])
    assert {m: [r.url for r in s.replicas.values()] for m, s in registry.services.items()} == {
        "m": ["http://a:1", "http://b:2"],
        "org/n": ["http://c"],
    }
    assert [r.url for r in registry_of(["m=http://a:1/v1,http://b/v1/"]).services["m"].replicas.values()] == [
        "http://a:1",
        "http://b",
    ], "as OpenAI's clients are given it"
    with pytest.raises(SettingError, match="twice"):
        registry_of(["m=http://a", "m=http://b"])
