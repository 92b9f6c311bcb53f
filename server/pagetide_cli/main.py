"""Entry point of `pagetide`."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence

from pagetide_spec.errors import install_hint
from pagetide_spec.streams import run_program

# command: (module with main(argv) -> exit code, extra that brings its dependencies, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("pagetide_server.serve", "server", "serve one model over HTTP"),
    "up": ("pagetide_operator.local.up", "server", "run InferenceService files on this machine"),
    "operator": ("pagetide_operator.main", "operator", "run the Kubernetes operator"),
    "gateway": ("pagetide_gateway.main", "", "run the gateway"),
    "top": ("pagetide_operator.top.main", "", "watch a server, a gateway or a cluster"),
    "bench": ("pagetide_server.bench.main", "", "load a server and measure it"),
    "plan": ("pagetide_server.plan", "server", "print what a model needs, without loading it"),
    "simulate": ("pagetide_operator.simulate.command", "", "replay a trace through autoscaler and router"),
    "crd": ("pagetide_operator.crd_command", "", "print the CustomResourceDefinition"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2 for a wrong call)."""
    args = list(sys.argv[1:] if argv is None else argv)
    return run_program(lambda: _run(args), " ".join(["pagetide", *args[:1]]))


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(version("pagetide"))
        return 0
    if args[0] not in COMMANDS:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"pagetide: {args[0]!r}: no such command; {hint}", file=sys.stderr)
        return 2
    command = load(args[0])
    return command(args[1:]) if command else 2


def load(name: str) -> Callable[[Sequence[str]], int] | None:
    """The command's main function, or None (after one line on stderr) where its extra is not installed."""
    module, extra, _ = COMMANDS[name]
    try:
        found: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("pagetide"):
            raise
        print(f"pagetide {name}: needs {error.name}; {install_hint(extra)}", file=sys.stderr)
        return None
    return found


def usage() -> str:
    """The list of commands."""
    rows = "\n".join(f"  {name:10} {text}" for name, (_, _, text) in COMMANDS.items())
    return f"usage: pagetide COMMAND ...\n\n{rows}\n\n`pagetide COMMAND --help` shows more."


if __name__ == "__main__":
    sys.exit(main())
