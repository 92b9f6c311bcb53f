"""The engine process: `python -m pagetide_server.process.worker`, started by `client.py` with a `Launch` on stdin.

It reads requests between steps, never in the middle of one, and sends all that one step brought as one message. A
thread of its own sends a heartbeat every second, so that a long step is not taken for a hang.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.logs import set_up_logging
from pagetide_spec.names import EXIT_SETTING

from ..before_torch import prepare_environment
from ..wire.columns import move_to_columns
from ..wire.faults import EngineFailed
from ..wire.launch import EXIT_ENGINE, EXIT_START, Launch
from ..wire.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    Failed,
    Heartbeat,
    Loading,
    Ready,
    SequenceOutput,
    Shutdown,
    StepOutput,
)
from .channels import Channel, ClientGone
from .liveness import HEARTBEAT_SECONDS
from .parent import die_with_parent

# Not `__name__`: this module runs as __main__.
log = logging.getLogger("pagetide.engine")

WAITING_POLL_MS = 10
LOADING_SECONDS = 0.1


class Core(Protocol):
    """What this process drives; `core.EngineCore` is the real one."""

    ready: Ready

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        """Take a request in; its refusal, if it is refused."""

    def abort(self, request: AbortRequest) -> list[SequenceOutput]:
        """Stop a request; the last outputs of what ended."""

    def has_work(self) -> bool:
        """Whether a step would do something now."""

    def is_waiting(self) -> bool:
        """Whether there is nothing to step now, but soon may be."""

    def step(self) -> StepOutput:
        """Run one step."""

    def stats(self) -> EngineStats:
        """State and totals now."""

    def close(self) -> None:
        """Nothing more will be asked."""


class Loop:
    """Reads, steps, sends; the attributes are read by the heartbeat's thread."""

    def __init__(self, core: Core, channel: Channel) -> None:
        self.core, self.channel = core, channel
        self.steps = 0
        self.step_started: float | None = None
        self.has_work = False

    def run(self) -> None:
        """Serve until a `Shutdown` comes; an exception of the core is the caller's."""
        self.channel.send(self.core.ready)
        self._report([])
        while self._take_in():
            if self.has_work:
                self._step()

    def _take_in(self) -> bool:
        """Handle what has arrived; False after a `Shutdown`. Blocks while there is nothing to step."""
        messages = self.channel.read(self._patience_ms())
        outputs: list[SequenceOutput] = []
        for message in messages:
            if isinstance(message, Shutdown):
                return False
            outputs += self.core.add(message) if isinstance(message, AddRequest) else self.core.abort(message)
        if messages:
            self._report(outputs)
        self.has_work = self.core.has_work()
        return True

    def _patience_ms(self) -> int | None:
        if self.core.has_work():
            return 0
        self.has_work = False
        return WAITING_POLL_MS if self.core.is_waiting() else None

    def _step(self) -> None:
        self.step_started = time.monotonic()
        output = self.core.step()
        self.step_started = None
        self.steps += 1
        move_to_columns(output)
        self.channel.send(output)

    def _report(self, outputs: list[SequenceOutput]) -> None:
        self.channel.send(StepOutput(outputs=outputs, stats=self.core.stats(), time=time.monotonic()))


class HeartbeatThread(threading.Thread):
    """Sends a heartbeat every second; exits the process when its parent is gone."""

    def __init__(self, loop: Loop, channel: Channel, parent: int) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._loop, self._channel, self._parent = loop, channel, parent

    def run(self) -> None:
        """Beat until the process exits."""
        with contextlib.suppress(ClientGone):
            while os.getppid() == self._parent:
                self._channel.send(self._beat())
                time.sleep(HEARTBEAT_SECONDS)
        os._exit(EXIT_ENGINE)

    def _beat(self) -> Heartbeat:
        loop = self._loop
        return Heartbeat(
            time=time.monotonic(),
            steps=loop.steps,
            step_started=loop.step_started,
            has_work=loop.has_work,
            cpu_seconds=time.process_time(),
        )


def resolve(name: str) -> Callable[[EngineConfig, Callable[[str, float], None]], Core]:
    """What "module:attribute.attribute" names."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def loading_reporter(channel: Channel) -> Callable[[str, float], None]:
    """A progress callback that sends `Loading` messages, at most ten a second for each stage."""
    last: dict[str, float] = {}

    def report(stage: str, fraction: float) -> None:
        now = time.monotonic()
        if fraction >= 1 or now - last.get(stage, 0.0) >= LOADING_SECONDS:
            last[stage] = now
            channel.send(Loading(stage=stage, fraction=fraction))

    return report


def start(launch: Launch, channel: Channel) -> Core:
    """The core.

    Raises:
        EngineFailed: it could not start.
    """
    try:
        config = EngineConfig.from_mapping(launch.config)
        return resolve(launch.core)(config, loading_reporter(channel))
    except PagetideError as error:
        raise EngineFailed(str(error), EXIT_SETTING if isinstance(error, SettingError) else EXIT_START) from error
    except Exception as error:
        log.exception("the engine could not start")
        raise EngineFailed(f"{type(error).__name__}: {error}", EXIT_START) from error


def serve(core: Core, channel: Channel, heartbeat: Callable[[Loop], HeartbeatThread]) -> None:
    """Run the loop to its end.

    Raises:
        EngineFailed: a step failed.
    """
    loop = Loop(core, channel)
    heartbeat(loop).start()
    # What is loaded lives as long as the process: a garbage collection that walks it all would only delay a step.
    gc.freeze()
    try:
        loop.run()
    except Exception as error:
        log.exception("an engine step failed")
        raise EngineFailed(f"{type(error).__name__}: {error}", EXIT_ENGINE) from error
    core.close()


def run(launch: Launch, channel: Channel) -> int:
    """Start the core and serve; the exit code."""
    try:
        core = start(launch, channel)
        serve(core, channel, lambda loop: HeartbeatThread(loop, channel, launch.parent))
    except EngineFailed as failure:
        channel.send(Failed(message=str(failure), exit_code=failure.exit_code))
        return failure.exit_code
    return 0


def main() -> int:
    """Read the `Launch`, connect, run."""
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=Launch)
    die_with_parent(launch.parent)
    prepare_environment()
    set_up_logging(launch.config["log_level"], launch.config["log_format"], "engine")
    channel = Channel(socket.socket(fileno=launch.connection))
    try:
        return run(launch, channel)
    except ClientGone:
        return EXIT_ENGINE


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    # Threads of native libraries must not keep a finished engine alive.
    os._exit(exit_code)
