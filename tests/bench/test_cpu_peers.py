"""bench/cpu_peers.py runs Pagetide itself, as a library and as a server, and says what it cannot do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "cpu_peers.py"
DRIVERS = SCRIPT.parent / "peers" / "drivers"


def drive(driver: str, job: dict[str, Any], result: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DRIVERS / driver), str(result)]
    root = SCRIPT.parents[1]
    path = os.pathsep.join(str(root / part) for part in ("operator", "server", "kernels"))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, input=json.dumps(job), env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["drive_pagetide.py", "drive_pagetide_http.py"])
def test_our_own_drivers(driver: str, tiny_model: Any, tmp_path: Path) -> None:
    prompts = [[7, 8, 9, 10], [20] * 40]
    job = {
        "model": str(tiny_model("llama")),
        "prompts": prompts,
        "lengths": [3, 5],
        "threads": 1,
        "options": {"kv_cache_memory_gib": 0.01, "max_num_seqs": 4},
    }
    done = drive(driver, job, tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["tokens"] == 8
    assert 0 < max(found["first_token_seconds"]) < found["seconds"]
    assert found["peak_mib"] > 50
    # So short a run may take less than one tick of the clock.
    assert 0 <= found["own_share"] <= 1
    assert 0 <= found["others_share"] <= 1


@pytest.mark.slow
def test_an_answer_of_another_length_is_no_result(tiny_model: Any, tmp_path: Path) -> None:
    # The model's window ends it.
    job = {"model": str(tiny_model("llama")), "prompts": [[7] * 500], "lengths": [64], "threads": 1, "options": {}}
    done = drive("drive_pagetide.py", job, tmp_path / "result.json")
    assert done.returncode != 0
    assert not (tmp_path / "result.json").exists()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60)


def test_unlike_precisions_end_with_one_clear_line(tmp_path: Path) -> None:
    done = run(str(tmp_path), "--contenders", "pagetide", "llama.cpp-q8_0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pagetide (float32)" in done.stderr
    assert "--unlike-precisions" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["m", "--rounds=0"], "--rounds: must be at least 1", id="no round"),
        pytest.param(["m", "--threads=0"], "--threads: must be at least 1", id="no thread"),
        pytest.param(["m", "--timeout=nan"], "--timeout: must be at least 1", id="a time that is none"),
        pytest.param(["m", "--json=/nowhere/x.json"], "/nowhere/x.json is no file", id="no place for the figures"),
        pytest.param(["m", "--json=/proc/x.json"], "/proc/x.json is no file", id="a folder that takes no file"),
        pytest.param(["m", "--json=."], ". is no file that can be written: Is a directory", id="a folder"),
        pytest.param(["--from", "/nowhere"], "/nowhere is not what --json wrote", id="no figures"),
        pytest.param(["--from", __file__], "is not what --json wrote", id="a file of something else"),
    ],
)
def test_a_wrong_call_is_one_clear_line(arguments: list[str], problem: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("timeout", "ending", "code"),
    [
        pytest.param(2, None, 1, id="a run that takes too long"),
        pytest.param(60, signal.SIGINT, 130, id="Ctrl-C"),
        pytest.param(60, signal.SIGTERM, 130, id="being ended"),
    ],
)
def test_no_peers_server_is_left_running(timeout: int, ending: int | None, code: int, tmp_path: Path) -> None:
    server = tmp_path / "llama.cpp/bin/llama-server"
    server.parent.mkdir(parents=True)
    server.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 300\n"
    )
    server.chmod(0o755)
    (tmp_path / "m-f32.gguf").touch()
    command = [sys.executable, str(SCRIPT), str(tmp_path / "m"), f"--peers={tmp_path}", f"--timeout={timeout}"]
    process = subprocess.Popen(
        [*command, "--contenders", "llama.cpp", "--workloads", "W3", "--rounds=1"],
        # Where the tests themselves run in the background, SIGINT is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 50
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        if ending is not None:
            process.send_signal(ending)
        assert process.wait(50) == code
        state = Path(f"/proc/{pid}/stat")
        while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    finally:
        process.kill()
        process.wait()


def test_a_missing_peer_is_told_and_left_out(tmp_path: Path) -> None:
    done = run(str(tmp_path / "model"), f"--peers={tmp_path}", "--contenders", "vllm", "--workloads", "W3")
    assert done.returncode == 1
    assert f"vllm does not take part: {tmp_path / 'vllm/bin/python'} is missing" in done.stderr


def test_kept_figures_of_several_calls_make_one_table(tmp_path: Path) -> None:
    # The machine was half as fast in the second call: the ratio is of runs of one call.
    for number, slowness in enumerate((1, 2)):
        runs = [
            {
                "contender": name, "weights": "float32", "precision": "16/32-bit", "workload": "W3", "round": 0,
                "seconds": seconds * slowness, "tokens": 128, "first_token_seconds": [0.1], "peak_mib": 900.0,
                "own_share": 0.9, "others_share": 0.0, "beginnings": [],
            }
            for name, seconds in (("pagetide", 2.0), ("vllm", 4.0))
        ]  # fmt: skip
        (tmp_path / f"{number}.json").write_text(json.dumps({"runs": runs}))
    done = run("--from", str(tmp_path / "0.json"), str(tmp_path / "1.json"))
    assert done.returncode == 0, done.stderr
    assert "| W3 | vllm | float32 | 2 | 24.0 (16.0-32.0) |" in done.stdout
    assert "2.00 (2.00-2.00)" in done.stdout
