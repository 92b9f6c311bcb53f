"""`python -m pagetide_dashboards`: write everything anew; `make generate` calls it."""

from .files import write

write()
