"""`pagetide up` whose replicas are fakes; a service behaves as the part of its name behind the first dash says."""

from __future__ import annotations

import sys
from pathlib import Path

from pagetide_operator.local.service import LocalService
from pagetide_operator.local.up import main

FAKE = Path(__file__).with_name("fake_replica.py")


def command(service: LocalService, port: int) -> list[str]:
    behaviour = service.name.partition("-")[2] or "well"
    return [sys.executable, str(FAKE), str(port), service.model_name, behaviour]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command, scrape_s=0.5))
