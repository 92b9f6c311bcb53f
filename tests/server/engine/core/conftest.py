"""Cores on fakes, which must come to rest."""

from __future__ import annotations

import pytest

from .harness import Harness


@pytest.fixture
def harness():
    """Makes harnesses; at the end each has come to rest with nothing left of any request."""
    made = []

    def make(**changes):
        made.append(Harness(**changes))
        return made[-1]

    yield make
    for each in made:
        each.run()
        each.check_empty()
        each.ends()
