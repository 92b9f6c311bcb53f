"""A world with one service that is scaled."""

import pytest

from pagetide_spec.names import KIND

from .world import QUICK, World


@pytest.fixture
def world(monkeypatch, service):
    made = World(monkeypatch)
    made.store.put(KIND, service(autoscaling=QUICK, drainSeconds=60))
    return made
