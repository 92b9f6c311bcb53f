"""The parser of all commands: a wrong call is one line that names the nearest right one, and exit code 2."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors, no abbreviated flags and a hint for a misspelt one.

    `hints` say for flags that do not exist, but that people know from elsewhere, what to do instead.
    """

    def __init__(self, prog: str, hints: Mapping[str, str] | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog, allow_abbrev=False, **options)
        self._hints = hints or {}

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The parsed arguments; exits with code 2 after one line on stderr for a wrong call."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"{unknown[0]}: {self._hint(unknown[0])}")
        return found

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's own, where that fails it raises."""
        print(self.format_help(), end="", file=file or sys.stdout)

    def error(self, message: str) -> NoReturn:
        """Print the one line and exit."""
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)

    def _hint(self, given: str) -> str:
        if not given.startswith("-"):
            return "unexpected argument"
        name = given.partition("=")[0]
        if name in self._hints:
            return f"no such flag; {self._hints[name]}"
        flags = [name for action in self._actions for name in action.option_strings]
        near = difflib.get_close_matches(name, flags, n=1)
        return f"no such flag; did you mean {near[0]}?" if near else "no such flag"
