"""`python -m pagetide_server` is `pagetide serve`."""

import sys

from .serve import main

if __name__ == "__main__":
    sys.exit(main())
