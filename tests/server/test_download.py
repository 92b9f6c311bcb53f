"""`pagetide serve --download-only`: ends with the exit code that a server would end with, and opens no port."""

import io
import json
import logging

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from pagetide_server import serve
from pagetide_server.checkpoint.files import silent
from pagetide_server.checkpoint.hub import fetch
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig
from pagetide_spec.logs import set_up_logging


@pytest.fixture
def hub(monkeypatch, tiny_model):
    """A hub that has one model; what was asked of it."""
    asked = []

    def download(repository, *, revision, allow_patterns):
        asked.append((repository, revision))
        if repository == "org/gone":
            raise LocalEntryNotFoundError("no way to the hub")
        return str(tiny_model("llama"))

    def listen(*_):
        raise AssertionError("no port is needed")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(serve, "listen", listen)
    return asked


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        pytest.param(["org/name", "--revision=v2"], 0, {("org/name", "v2")}, id="a model at its revision"),
        pytest.param(
            ["org/name", "--tokenizer=org/words"], 0, {("org/name", None), ("org/words", None)}, id="another tokenizer"
        ),
        pytest.param(["org/gone"], 3, {("org/gone", None)}, id="a hub that does not answer"),
        pytest.param(["/no/such/folder"], 2, set(), id="no model at all"),
    ],
)
def test_download_only(hub, arguments, code, expected):
    assert serve.main([*arguments, "--download-only"]) == code
    assert set(hub) == expected


def test_the_last_line_says_why(hub, capsys):
    """It is what the status of the service shows."""
    serve.main(["org/gone", "--download-only"])
    assert capsys.readouterr().err.splitlines()[-1].startswith("pagetide serve: MODEL: 'org/gone': ")


def test_the_tokenizer_is_named_where_it_cannot_be_had(hub, capsys):
    assert serve.main(["org/name", "--tokenizer=org/gone", "--download-only"]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("pagetide serve: --tokenizer: 'org/gone': no such ")


def test_a_tokenizer_that_is_fetched_first_says_so(hub):
    stages = []
    Tokenizer.load(EngineConfig(model="org/name"), lambda stage, fraction: stages.append((stage, fraction)))
    assert stages == [("downloading the model", 0.0), ("downloading the model", 1.0)]


@pytest.fixture
def own():
    """A handler of the hub's library, such as it adds itself when it is imported."""
    library, handler = logging.getLogger("huggingface_hub"), logging.StreamHandler(io.StringIO())
    library.addHandler(handler)
    yield handler
    library.removeHandler(handler)


def test_what_the_hub_library_says_is_logged_once(hub, own, capsys):
    set_up_logging("info", "json")
    fetch(EngineConfig(model="org/name"), [], silent)
    logging.getLogger("huggingface_hub.utils._http").warning("no token")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["no token"]
    assert own.stream.getvalue() == ""


def test_handlers_of_a_program_that_uses_the_library_are_left_alone(hub, own, caplog, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [caplog.handler])
    fetch(EngineConfig(model="org/name"), [], silent)
    logging.getLogger("huggingface_hub.utils._http").warning("no token")
    assert caplog.messages == ["no token"]
    assert own.stream.getvalue() == "no token\n"
