"""`python -m pagetide_server` is `pagetide serve`."""

import sys

from pagetide_spec.streams import run_program


def _serve() -> int:
    from .serve import main  # only now: a closed stream is open, and an interrupt is quiet

    return main()


if __name__ == "__main__":
    sys.exit(run_program(_serve, "pagetide serve"))
