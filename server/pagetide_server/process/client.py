"""The API process's side of the engine: starts its process, sends requests, hands outputs to the waiting requests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError

from ..wire.faults import EngineDead, EngineFailed
from ..wire.launch import DEFAULT_CORE, EXIT_ENGINE, Launch
from ..wire.messages import (
    AbortRequest,
    AddRequest,
    Failed,
    FromEngine,
    Heartbeat,
    Loading,
    Ready,
    Shutdown,
    StepOutput,
    ToEngine,
)
from .link import Link
from .liveness import Liveness
from .mailbox import Mailbox, Prompt
from .process_state import ProcessState, process_state

__all__ = ["EngineClient", "EngineDead", "EngineFailed", "Prompt"]

log = logging.getLogger(__name__)

EXIT_SECONDS = 5.0


class EngineClient:
    """One engine process and everything asked of it. All calls belong to one event loop.

    Args:
        on_step: called with each `StepOutput` once its outputs have been handed on, which must not wait (metrics).
        on_loading: called with stage and fraction while the model loads.
    """

    def __init__(
        self,
        on_step: Callable[[StepOutput], None] | None = None,
        on_loading: Callable[[str, float], None] | None = None,
    ) -> None:
        self._on_step = on_step or (lambda step: None)
        self._on_loading = on_loading or (lambda stage, fraction: None)
        self._boxes: dict[str, Mailbox] = {}
        self._numbers = itertools.count()
        self._liveness = Liveness()
        self._link: Link | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._failure: EngineFailed | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False
        self.died = asyncio.Event()

    # ---- life

    async def start(self, config: EngineConfig, core: str = DEFAULT_CORE) -> Ready:
        """Start the process and wait until its model is loaded.

        `core` names what makes the core ("module:attribute"), for tests and benchmarks without a model.

        Raises:
            EngineFailed: the engine could not start.
        """
        self._on_loading("starting the engine", 0.0)  # it takes seconds to say so itself
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        link = self._link = Link(self._loop, self._handle)
        inherited = link.engine_end.fileno()
        launch = Launch(config=dataclasses.asdict(config), core=core, connection=inherited, parent=os.getpid())
        command = [sys.executable, "-m", "pagetide_server.process.worker"]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, pass_fds=[inherited]
        )
        link.engine_end.close()
        self._watcher = self._loop.create_task(self._watch(self._process))
        await self._tell(self._process, msgspec.json.encode(launch))
        return await asyncio.shield(self._ready)

    async def close(self, at_once: bool = False) -> None:
        """End the engine process and fail what is still open. May be called twice, and after a failed start.

        `at_once`: it may not end its step first. Nor may an engine that is stuck.
        """
        self._closing = True
        process = self._process
        if process is not None and process.returncode is None:
            self._send(Shutdown())
            # While it loads or is stuck, the engine reads no messages.
            is_reading = self._ready is not None and self._ready.done() and self.why_unhealthy() is None
            try:
                await asyncio.wait_for(process.wait(), EXIT_SECONDS if is_reading and not at_once else 0)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if self._watcher is not None:
            await self._watcher
        link, self._link = self._link, None
        if link is not None:
            link.close()

    @property
    def ready(self) -> Ready:
        """What the engine said of itself; only after `start` has returned."""
        if self._ready is None or not self._ready.done():
            raise PagetideError("the engine is not ready")
        return self._ready.result()

    @property
    def failure(self) -> EngineFailed | None:
        """Why the engine process exited by itself, or None."""
        return self._failure

    def why_unhealthy(self) -> str | None:
        """Why the engine cannot be relied on, or None. An idle engine is healthy, and so is one that still loads."""
        if self._failure is not None:
            return str(self._failure)
        return self._liveness.problem(time.monotonic(), self._process_state)

    def refresh(self) -> None:
        """Take in what has arrived: after a stall of this process, heartbeats of that time still lie in the socket."""
        if self._link is not None:
            self._link.receive()

    # ---- requests

    @contextlib.contextmanager
    def open(self, prompts: Sequence[Prompt], arrival: float | None = None, name: str = "r") -> Iterator[Mailbox]:
        """Submit prompts; their outputs come to one mailbox. Leaving the context aborts what has not ended.

        The ids in `Mailbox.ids` stand in the order of the prompts and are unique in this process; they begin with
        `name`, so that the engine's log speaks of requests as their clients do.

        Raises:
            EngineDead: there is no engine any more.
        """
        if self._failure is not None or self._closing:
            raise EngineDead(str(self._failure or "the engine is shutting down"))
        arrival = time.monotonic() if arrival is None else arrival
        box = Mailbox([f"{name}-{next(self._numbers)}" for _ in prompts], self._loop)
        try:
            for request_id, prompt in zip(box.ids, prompts, strict=True):
                self._boxes[request_id] = box
                self._send(
                    AddRequest(
                        request_id=request_id,
                        prompt_token_ids=prompt.token_ids,
                        params=prompt.params,
                        arrival=arrival,
                        priority=prompt.priority,
                        cache_salt=prompt.cache_salt,
                    )
                )
            yield box
        finally:
            for request_id in box.ids:
                if self._boxes.pop(request_id, None) is not None:
                    self._send(AbortRequest(request_id))

    def ended(self, request_id: str) -> None:
        """Say that all sequences of a request have ended, so that leaving its context need not abort it."""
        self._boxes.pop(request_id, None)

    def fail_open(self, reason: str) -> None:
        """Have every open reader raise `EngineDead`: the server is about to end."""
        error = EngineDead(reason)
        for box in list(self._boxes.values()):
            box.fail(error)

    def stop(self, request_id: str, index: int) -> None:
        """End one sequence because a stop string was found in its text."""
        self._send(AbortRequest(request_id, index, "stop"))

    # ---- messages

    def _handle(self, message: FromEngine, is_last: bool = True) -> None:
        if isinstance(message, StepOutput):
            self._liveness.heard = time.monotonic()
            self._hand_on(message, is_last)
            self._on_step(message)
        elif isinstance(message, Heartbeat):
            self._liveness.beat(message, time.monotonic())
        elif isinstance(message, Loading):
            self._on_loading(message.stage, message.fraction)
        elif isinstance(message, Failed):
            self._failure = self._failure or EngineFailed(message.message, message.exit_code)
        elif self._ready is not None and not self._ready.done():
            self._liveness.step_seconds = message.step_seconds
            self._ready.set_result(message)

    def _hand_on(self, step: StepOutput, is_last: bool) -> None:
        boxes = self._boxes
        for request_id, token_id in zip(step.plain_ids, step.plain_tokens, strict=True):
            if (box := boxes.get(request_id)) is not None:
                box.put_plain(request_id, token_id, is_last)
        for output in step.outputs:
            if (box := boxes.get(output.request_id)) is not None:
                box.put(output, is_last)

    # ---- process and connection

    def _process_state(self) -> ProcessState | None:
        return None if self._process is None else process_state(self._process.pid)

    def _send(self, message: ToEngine) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _tell(self, process: asyncio.subprocess.Process, text: bytes) -> None:
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it died at once: `_watch` says so
            process.stdin.write(text)
            await process.stdin.drain()
        process.stdin.close()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of the process, then fail everything that waits for it."""
        code = await process.wait()
        try:
            if self._link is not None:
                self._link.receive_last()
        except Exception:  # whatever it is, waiting requests must learn that nothing more comes
            log.exception("the engine's last messages could not be handled")
        if self._failure is None and not self._closing:
            what = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._failure = EngineFailed(f"the engine process {what}", EXIT_ENGINE)
        self.fail_open(str(self._failure or "the engine is shutting down"))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(self._failure or EngineFailed("stopped while loading", EXIT_ENGINE))
            self._ready.exception()  # nobody may be waiting any more
        self.died.set()
