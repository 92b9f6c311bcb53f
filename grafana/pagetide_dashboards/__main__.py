"""`python -m pagetide_dashboards`: regenerate everything; `make generate` calls it."""

from .files import write

write()
