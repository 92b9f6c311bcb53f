"""`pagetide bench`: flags and variables."""

from __future__ import annotations

import pytest

from pagetide_server.bench.flags import parse as parse_flags
from pagetide_server.bench.target import Model, TargetError, chosen
from pagetide_spec.errors import SettingError

CARDS = {"a": {"id": "a", "vocab_size": 9, "max_model_len": 5}, "b": {"id": "b", "vocab_size": "many"}}


@pytest.mark.parametrize(
    ("cards", "wanted", "found"),
    [
        pytest.param({"a": CARDS["a"]}, None, Model("a", 9, 5), id="the only one"),
        pytest.param(CARDS, "b", Model("b"), id="the one that is named"),
        pytest.param({}, "c", Model("c"), id="no list"),
        pytest.param(CARDS, None, SettingError, id="several"),
        pytest.param(CARDS, "c", SettingError, id="not in the list"),
        pytest.param({}, None, TargetError, id="no list and no name"),
    ],
)
def test_which_model(cards, wanted, found):
    if isinstance(found, Model):
        assert chosen(cards, wanted) == found
    else:
        with pytest.raises(found):
            chosen(cards, wanted)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("localhost:8931", "must be http://HOST:PORT"), ("ftp://h:1", "must be http://HOST:PORT"),
        ("http://h:port", "Port could not be cast"), ("http://", "must be http://HOST:PORT"),
        ("http://h:1?a=b", "must have no query"), ("http://h:1#a", "must have no query and no fragment"),
    ],
)  # fmt: skip
def test_a_wrong_url_is_told_as_it_was_typed(url, problem):
    with pytest.raises(SettingError) as raised:
        parse_flags([url], {})
    assert str(raised.value).startswith(f"URL: {url!r}: {problem}")


@pytest.mark.parametrize(
    ("argv", "env", "found"),
    [
        pytest.param([], {}, {"requests": 100, "concurrency": 8, "api_key": None}, id="defaults"),
        pytest.param(["--duration=5"], {}, {"requests": None, "concurrency": 8}, id="by time"),
        pytest.param(["--rate=5"], {}, {"requests": 100, "concurrency": None, "is_open_loop": True}, id="open loop"),
        pytest.param(["--trace=f"], {}, {"requests": None, "is_open_loop": True}, id="the whole trace"),
        pytest.param(["--chat"], {}, {"path": "/v1/chat/completions"}, id="chat"),
        pytest.param([], {"OPENAI_API_KEY": "o"}, {"api_key": "o"}, id="OpenAI's key"),
        pytest.param(["--api-key=f"], {"PAGETIDE_API_KEY": "e"}, {"api_key": "f"}, id="a flag wins"),
    ],
)
def test_settings(argv, env, found):
    settings = parse_flags(["http://h:1/v1/", *argv], env)
    assert settings.url == "http://h:1"
    assert {name: getattr(settings, name) for name in found} == found
    assert "api_key" not in settings.shown()
    assert settings.api_key is None or settings.api_key not in repr(settings).split("=")
