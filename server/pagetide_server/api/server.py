"""One server from start to exit: the HTTP side answers from the first moment, the engine loads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvicorn

from pagetide_http.protocol import ConnectionLimits, GuardedProtocol
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.flags import in_flags
from pagetide_spec.logs import in_form
from pagetide_spec.names import EXIT_SETTING
from pagetide_spec.streams import write_line

from ..process.client import EngineClient, EngineFailed
from ..progress import LoadingProgress
from ..text.chat import Templates, configured
from ..text.tokenizer import Tokenizer
from ..wire.launch import DEFAULT_CORE, EXIT_ENGINE, EXIT_START
from .app import create_app
from .background import in_background
from .context import Context, served_name
from .lifecycle import Lifecycle
from .metrics import ServerMetrics
from .prompts import Prompter
from .sockets import shown_address
from .tracing import tracing

log = logging.getLogger("pagetide")

# How long streams get to send their last event once the engine is gone or the drain is over.
LAST_WORDS_SECONDS = 2.0
# Bytes of a request's head: more than a gateway takes, which adds to it.
MAX_HEAD = 2**20
EXIT_HTTP = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: a drain must keep the port open."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Serves one model until a signal comes or the engine exits.

    Args:
        config: all settings.
        keys: API keys; none: open to all.
        core: what makes the engine's core, "module:attribute".
        load_tokenizer: makes the tokenizer.
    """

    def __init__(
        self,
        config: EngineConfig,
        keys: list[str],
        core: str = DEFAULT_CORE,
        load_tokenizer: Callable[[EngineConfig], Tokenizer] = Tokenizer.load,
    ) -> None:
        self._config, self._keys, self._core, self._load_tokenizer = config, keys, core, load_tokenizer
        self._signals = 0
        self._last_signal = signal.SIGTERM

    async def run(self, listener: socket.socket) -> int:
        """Serve on a listening socket; the exit code (wire/launch.py, and 128 + signal after a second signal)."""
        self._set_up()
        self._signalled, self._hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        http = _Uvicorn(self._http_config())
        serving = loop.create_task(http.serve([listener]))
        try:
            return await self._live(shown_address(listener, self._config.host), serving)
        finally:
            self._progress.close()
            http.should_exit = True
            await asyncio.wait([serving])
            await self._context.engine.close(at_once=self._hurried.is_set())
            if self._context.prompter is not None:
                self._context.prompter.close()
            if self._context.tracing is not None:
                self._context.tracing.close()

    def _set_up(self) -> None:
        config = self._config
        name, number = served_name(config), _version()
        metrics = ServerMetrics(name, number, config.metrics_compat == "vllm")
        self._progress = LoadingProgress()
        engine = EngineClient(on_step=metrics.step, on_loading=self._progress.report)
        traces = tracing(os.environ, number)
        lifecycle = Lifecycle(lambda: self._progress.stage)
        self._context = Context(config, engine, metrics, lifecycle, name, number, tracing=traces)

    def _http_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            create_app(self._context, self._keys),
            http=GuardedProtocol.within(ConnectionLimits(self._config.header_timeout_s, MAX_HEAD)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=max(1, round(self._config.keep_alive_s)),
            timeout_graceful_shutdown=round(LAST_WORDS_SECONDS),
        )

    # ---- phases

    async def _live(self, address: str, serving: asyncio.Task[None]) -> int:
        """Load, serve, drain; the exit code."""
        loading = asyncio.create_task(self._load())
        if not await self._unless_signalled(loading):
            log.info("stopped while loading")
            return 0
        self._progress.close()
        if code := loading.result():
            return code
        context = self._context
        context.metrics.ready = context.engine.ready
        context.lifecycle.serve()
        # What is loaded lives as long as the process: a garbage collection that walks it all would delay every token.
        gc.freeze()
        _announce(in_form(f"serving {context.model_name} at {address}", self._config.log_format))
        died = asyncio.ensure_future(context.engine.died.wait())
        ended = asyncio.ensure_future(asyncio.wait((died, serving), return_when=asyncio.FIRST_COMPLETED))
        if not await self._unless_signalled(ended):
            return await self._drain()
        if died.done():
            return await self._engine_died()
        died.cancel()
        log.error("the HTTP side has ended by itself", exc_info=serving.exception())
        return EXIT_HTTP

    async def _load(self) -> int:
        """Load tokenizer and model side by side; 0, or the exit code after a message."""
        context, config = self._context, self._config
        try:
            _, (tokenizer, templates) = await asyncio.gather(
                context.engine.start(config, self._core), in_background(self._load_text)
            )
            limits = context.limits
            context.prompter = await in_background(lambda: Prompter(tokenizer, templates, limits))
        except EngineFailed as error:
            return self._say(str(error), error.exit_code)
        except PagetideError as error:
            return self._say(str(error), EXIT_SETTING if isinstance(error, SettingError) else EXIT_START)
        return 0

    def _load_text(self) -> tuple[Tokenizer, Templates]:
        tokenizer = self._load_tokenizer(self._config)
        return tokenizer, configured(self._config.chat_template, tokenizer)

    async def _drain(self) -> int:
        """Take no more requests, let running ones finish; a second signal or the time limit cuts them."""
        context, limit = self._context, self._config.shutdown_timeout_s
        context.lifecycle.drain()
        log.info("draining: %d requests in flight, up to %g s", context.lifecycle.in_flight, limit)
        ends = [asyncio.ensure_future(wait) for wait in (
            context.lifecycle.idle(), self._hurried.wait(), context.engine.died.wait()
        )]  # fmt: skip
        await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if context.engine.failure is not None:
            return await self._engine_died()
        code, why = self._end_of_drain()
        if context.lifecycle.in_flight:
            level = logging.ERROR if code == EXIT_ENGINE else logging.WARNING
            log.log(level, "cutting %d requests: %s", context.lifecycle.in_flight, why)
            context.engine.fail_open("the server is shutting down")
            await self._last_words()
        return code

    def _end_of_drain(self) -> tuple[int, str]:
        """The exit code, and why requests that are still in flight are cut."""
        context = self._context
        if not context.lifecycle.in_flight:
            return 0, ""
        if self._hurried.is_set():
            return 128 + self._last_signal, "a second signal came"
        context.engine.refresh()
        if (problem := context.engine.why_unhealthy()) is not None:
            return EXIT_ENGINE, problem
        return 0, f"they took longer than {self._config.shutdown_timeout_s:g} s (--shutdown-timeout-s)"

    async def _engine_died(self) -> int:
        failure = self._context.engine.failure
        assert failure is not None
        self._context.lifecycle.drain()
        log.error("the engine is gone: %s", failure)
        await self._last_words()
        return failure.exit_code

    async def _last_words(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._context.lifecycle.idle(), LAST_WORDS_SECONDS)

    # ---- signals

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        self._last_signal = number
        self._signalled.set()
        if self._signals > 1:
            self._hurried.set()

    async def _unless_signalled(self, work: asyncio.Future[Any]) -> bool:
        """Wait for `work`; False, and it is cancelled, if a signal comes first."""
        signalled = asyncio.ensure_future(self._signalled.wait())
        await asyncio.wait((work, signalled), return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if work.done():
            return True
        work.cancel()
        return False

    def _say(self, message: str, code: int) -> int:
        self._progress.close()
        write_line(in_form(f"pagetide serve: {in_flags(message)}", self._config.log_format, logging.ERROR), sys.stderr)
        return code


def _announce(line: str) -> None:
    """On stdout whatever the log level is: people and scripts wait for it. A full disk keeps no server from serving."""
    if (error := write_line(line, sys.stdout)) is not None:
        log.warning("stdout cannot be written: %s; %s", error.strerror, line)


def _version() -> str:
    try:
        return version("pagetide")
    except PackageNotFoundError:
        return "unknown"
