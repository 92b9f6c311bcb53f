"""A scheduler over the toy memory."""

from __future__ import annotations

import pytest

from pagetide_server.engine.scheduler import Scheduler

from .requests import config


@pytest.fixture
def engine(toy_engine):
    """Makes an engine of `requests.SETTINGS` with some changed and some requests added."""

    def make(*requests, **changes):
        made = toy_engine(Scheduler(config(**changes)))
        for each in requests:
            made.scheduler.add(each)
        return made

    return make
