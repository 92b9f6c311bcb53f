"""Pagetide beside other engines on this CPU: `PEERS=~/peers python bench/cpu_peers.py MODEL`.

MODEL is a plain model folder. Those who are installed below $PEERS (or --peers) take part; docs/performance.md says
how to install them. Contenders run in turn, round after round, each run in a fresh process with the same number of
threads. The first contender is compared with each of the others, over runs of the same round. --json keeps the
figures, and `--from FILE ...` prints the table of what was kept, so that a long comparison may be run in parts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.contenders import CONTENDERS, OURS, Contender, UnlikePrecisions, check_precisions
from peers.figures import Run, lines, table
from peers.workloads import WORKLOADS, requests_of

DEFAULT = ["pagetide", "openvino", "vllm", "llama.cpp", "transformers", "transformers-cb"]


class WrongCall(Exception):
    """What the command line asks for cannot be done; the text says why."""


class RunFailed(Exception):
    """A contender could not finish its job; the text has the end of what it said."""


def main() -> int:
    """Run what the command line asks for; the exit code."""
    arguments = _parser().parse_args()
    try:
        if arguments.kept:
            print(table(lines(_kept(arguments.kept))))
            return 0
        _check(arguments)
        return _compare(arguments)
    except (WrongCall, UnlikePrecisions) as error:
        print(f"cpu_peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cpu_peers: interrupted; --json has the runs that came to their end", file=sys.stderr)
        return 130


def _check(arguments: argparse.Namespace) -> None:
    """Raise WrongCall or UnlikePrecisions for what cannot be, before an hour is spent on it."""
    if arguments.model is None:
        raise WrongCall("MODEL is required; give the folder of a model")
    for name, least in (("rounds", 1), ("threads", 1), ("timeout", 1)):
        if not least <= getattr(arguments, name) < float("inf"):
            raise WrongCall(f"--{name}: must be at least {least}, not {getattr(arguments, name):g}")
    check_precisions([CONTENDERS[name] for name in arguments.contenders], arguments.unlike_precisions)
    if arguments.json:
        try:
            arguments.json.open("a").close()
        except OSError as error:
            raise WrongCall(f"--json: {arguments.json} is no file that can be written: {error.strerror}") from None


def _compare(arguments: argparse.Namespace) -> int:
    runs: list[Run] = []
    for run in _runs(arguments, _installed(arguments)):
        runs.append(run)
        if arguments.json:  # after each, so that a comparison that is cut short is not lost
            arguments.json.write_text(json.dumps({"runs": [dataclasses.asdict(r) for r in runs]}), "utf-8")
    if not runs:
        return 1
    print(table(lines(runs)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="a plain model folder")
    parser.add_argument("--peers", type=Path, default=os.environ.get("PEERS", "."), help="where they are installed")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=DEFAULT, metavar="NAME",
                        help=f"the first one is compared with the others; of {', '.join(CONTENDERS)}")  # fmt: skip
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run")
    parser.add_argument("--unlike-precisions", action="store_true", help="compare weights of unlike precision")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--from", dest="kept", nargs="+", type=Path, metavar="FILE", help="print what --json kept")
    return parser


def _kept(paths: Sequence[Path]) -> list[Run]:
    """The runs of several calls, as if it had been one: the rounds of each count on from those before."""
    runs: list[Run] = []
    for path in paths:
        done = 1 + max((run.round for run in runs), default=-1)
        try:
            found = [Run(**each) for each in json.loads(path.read_text("utf-8"))["runs"]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise WrongCall(f"--from: {path} is not what --json wrote: {error}") from None
        runs += [dataclasses.replace(run, round=done + run.round) for run in found]
    return runs


def _installed(arguments: argparse.Namespace) -> list[Contender]:
    """The contenders asked for that are installed; who is missing is told."""
    chosen = []
    for name in arguments.contenders:
        contender = CONTENDERS[name]
        missing = [path for path in contender.needs(arguments.peers, arguments.model) if not path.exists()]
        if missing:
            print(f"{name} does not take part: {missing[0]} is missing", file=sys.stderr)
        else:
            chosen.append(contender)
    return chosen


def _runs(arguments: argparse.Namespace, contenders: Sequence[Contender]) -> Iterator[Run]:
    for workload in arguments.workloads:
        print(f"{workload}: {WORKLOADS[workload].title}", file=sys.stderr)
        for number in range(arguments.rounds):
            for contender in contenders:
                try:
                    run = measure(contender, workload, number, arguments)
                except RunFailed as error:
                    print(f"  {contender.name}, round {number + 1}: {error}", file=sys.stderr)
                    continue
                print(
                    f"  {contender.name}, round {number + 1}: {run.tokens_per_second:.1f} tokens/s, "
                    f"first token {run.first_token or float('nan'):.2f} s, peak {run.peak_mib:.0f} MiB, "
                    f"others used {run.others_share:.1%} of the machine",
                    file=sys.stderr,
                )
                yield run


def measure(contender: Contender, workload: str, number: int, arguments: argparse.Namespace) -> Run:
    """One run in a process of its own.

    Raises:
        RunFailed: it ended with an error, or took too long.
    """
    requests = requests_of(workload)
    job = {
        "model": str(contender.model_path(arguments.model)),
        "prompts": [r.prompt for r in requests],
        "lengths": [r.max_tokens for r in requests],
        "threads": arguments.threads,
        "options": contender.options_of(workload),
    }
    result = drive(contender.command(arguments.peers), json.dumps(job), arguments.peers, arguments.timeout)
    return Run(contender.name, contender.weights, contender.precision, workload, number, **result)


def drive(command: Sequence[str], job: str, peers: Path, timeout: float) -> dict[str, object]:
    """What a driver makes of a job.

    Raises:
        RunFailed: it ended with an error, or took too long.
    """
    path = os.pathsep.join(filter(None, (OURS, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PEERS": str(peers.resolve())}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        try:
            code, said = _run([*command, str(result)], job, environment, timeout)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"took longer than {timeout:.0f} s") from None
        if code or not result.exists():
            raise RunFailed(f"exit code {code}: {said[-1500:]}")
        found: dict[str, object] = json.loads(result.read_text("utf-8"))
        return found


def _run(command: Sequence[str], job: str, environment: dict[str, str], timeout: float) -> tuple[int, str]:
    """Exit code and output; whatever happens, neither the process nor a server that it started is left running.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )
    try:
        out, err = process.communicate(job, timeout)
        return process.returncode, err or out
    finally:
        with contextlib.suppress(ProcessLookupError):  # none of them is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    # Ended by `timeout`, it cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
