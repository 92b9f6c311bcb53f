"""The C++ ops built ahead, for images: one library for every kind of processor, since an image does not know its own.

    python -m pagetide_kernels.cpu.prebuilt [--here]

They lie in the package's own folder, and an engine that finds its kind there compiles nothing and needs no compiler.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import build


def kinds() -> list[tuple[str, ...]]:
    """The flags of every kind of processor that `build.instruction_flags` distinguishes on this architecture."""
    if platform.machine().lower() not in build.X86:
        return [()]
    vectors = [
        (*flags, *dot) for name, flags in build.INSTRUCTION_SETS.items() for dot in ((), (build.DOT_PRODUCTS[name][1],))
    ]
    return [(), *vectors]


def build_all(wanted: list[tuple[str, ...]], say: Callable[[str], None]) -> None:
    """Compile what is not there yet, two at a time.

    Raises:
        BuildError: no compiler, or it failed.
    """
    compiler = build.find_compiler()
    build.PREBUILT.mkdir(exist_ok=True)

    def make(kind: tuple[str, ...]) -> None:
        flags = (*build.FLAGS, *kind)
        path, missing = build.kept(build.prebuilt_path(flags)), ""
        if path is None:
            path, missing = build.compile_library(compiler, flags, build.prebuilt_path(flags))
        without = f", but built without {missing}" if missing else ""
        say(f"{path.name}: {' '.join(kind) or 'the least that this architecture has'}{without}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, wanted))


def main() -> int:
    """Build them; 1 after one line where that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="for this machine's processor alone")
    args = parser.parse_args()
    try:
        build_all([build.instruction_flags()] if args.here else kinds(), lambda line: print(line, flush=True))
    except (build.BuildError, OSError) as error:
        print(f"the C++ ops were not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
