"""A wrong call of a command is one line and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagetide_cli.main import main
from pagetide_spec.command_line import Parser
from pagetide_spec.flags import in_flags, misspelt
from pagetide_spec.streams import READER_LEFT


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        pytest.param(["--prot=1"], "demo: --prot=1: no such flag; did you mean --port?", id="misspelt"),
        pytest.param(["--xyzzy"], "demo: --xyzzy: no such flag", id="unlike any flag"),
        pytest.param(["--por=1"], "demo: --por=1: no such flag; did you mean --port?", id="abbreviated"),
        pytest.param(["--model=x"], "demo: --model=x: no such flag; the model is an argument", id="of another tool"),
        pytest.param(["a", "b"], "demo: b: unexpected argument", id="one argument too many"),
        pytest.param(["--port=x"], "demo: argument --port: invalid int value: 'x'", id="wrong type"),
    ],
)
def test_a_wrong_call_is_one_line(argv, line, capsys):
    parser = Parser("demo", {"--model": "the model is an argument"})
    parser.add_argument("name", nargs="?")
    parser.add_argument("--port", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{line} (see demo --help)\n"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        pytest.param("srve", "did you mean serve?", id="misspelt"),
        pytest.param("xyzzy", "there are serve, up,", id="unlike any command"),
    ],
)
def test_an_unknown_command_is_named(command, hint, capsys):
    assert main([command]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"pagetide: {command!r}: no such command; ")
    assert hint in text
    assert text.count("\n") == 1


def test_a_reader_that_leaves_ends_a_command_quietly():
    """As `pagetide crd | head -3` does."""
    command = [sys.executable, "-m", "pagetide_cli.main", "crd"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == READER_LEFT


CLI, SERVE = "pagetide_cli.main", "pagetide_server"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param([CLI, "crd"], "pagetide crd", id="what a command prints"),
        pytest.param([CLI, "crd", "--help"], "pagetide crd", id="a command's help"),
        pytest.param([CLI, "serve", "--help"], "pagetide serve", id="a long help"),
        pytest.param([CLI, "--help"], "pagetide --help", id="the list of commands"),
        pytest.param([CLI, "--version"], "pagetide --version", id="the version"),
        pytest.param([SERVE, "--help"], "pagetide serve", id="the server's other form"),
    ],
)
def test_a_full_disk_is_one_line(arguments, name):
    # A narrow terminal makes the help longer than the stream's buffer.
    env = {**os.environ, "COLUMNS": "60"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=env,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"{name}: the output cannot be written: No space left on device\n"


def test_a_closed_stream_leaves_its_number_to_no_socket():
    """As `pagetide serve MODEL <&- >&- 2>&-` begins: what is printed must not go to the first client."""
    code = (
        "import os, sys; from pagetide_cli.main import main; main(['--version']); sys.exit(os.open('/', os.O_RDONLY))"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, timeout=60, check=False).returncode > 2


def test_a_misspelt_variable_is_hinted_at_and_others_are_left_alone():
    environ = {
        "PAGETIDE_MAX_NUM_SEQ": "3",
        "PAGETIDE_MAX_NUM_SEQS": "3",
        "PAGETIDE_CACHE": "x",
        "PAGETIDE_GATEWAY_SERVICE_HOST": "10.0.0.1",
        "HOME": "/",
    }
    hints = [str(hint) for hint in misspelt(environ)]
    assert hints == ["PAGETIDE_MAX_NUM_SEQ: '3': no such setting; did you mean PAGETIDE_MAX_NUM_SEQS?"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        pytest.param("max_model_len: 9: at most 8", "--max-model-len: 9: at most 8", id="the setting at fault"),
        pytest.param("model: 'org/m': is gone", "MODEL: 'org/m': is gone", id="the model"),
        pytest.param("dtype: 'x': no such dtype", "--dtype: 'x': no such dtype", id="a name that is a word, in front"),
        pytest.param(
            "seed: 1: lower max_num_seqs, or kv_cache_memory_gib to 2",
            "--seed: 1: lower --max-num-seqs, or --kv-cache-memory-gib to 2",
            id="what else to set",
        ),
        pytest.param(
            "chat_template: '/a/chat_template.jinja': chat_template.jinja has max_num_seqs_x, 'max_n', --max-n",
            "--chat-template: '/a/chat_template.jinja': chat_template.jinja has max_num_seqs_x, 'max_n', --max-n",
            id="files, values, other names and flags stay",
        ),
        pytest.param("the model is lost: max", "the model is lost: max", id="no setting"),
    ],
)
def test_settings_are_spelt_as_flags(message, told):
    assert in_flags(message) == told
