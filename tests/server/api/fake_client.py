"""What a generation asks of the engine's client, without an engine."""

from __future__ import annotations

import asyncio
import contextlib

from pagetide_server.process.mailbox import Mailbox


class Engine:
    """A client of no engine; a test puts the outputs into `box`."""

    def __init__(self):
        self.ended_ids, self.stopped = [], []

    @contextlib.contextmanager
    def open(self, prompts, arrival, name):
        self.box = Mailbox([f"{name}-{i}" for i in range(len(prompts))], asyncio.get_running_loop())
        yield self.box

    def ended(self, request_id):
        self.ended_ids.append(request_id)

    def stop(self, request_id, index):
        self.stopped.append((request_id, index))
