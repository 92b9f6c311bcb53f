"""`pagetide bench URL`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.names import EXIT_SETTING
from pagetide_spec.traces import Row, read

from . import report
from .connection import Client
from .figures import Distribution, Summary, summarize
from .flags import Settings, parse
from .load import Load
from .progress import shown
from .prompts import Prompts, body
from .scrape import queue_time
from .shapes import Mix, Shape, closed, made_up, poisson, replayed, within
from .target import Model, Target

log = logging.getLogger(__name__)
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
# Different numbers for arrivals and lengths, warm-up, and what prompts say.
LOAD, WARM_UP = "load", "warm-up"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a server; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        rows = read(settings.trace) if settings.trace is not None else None
        return uvloop.run(_Bench(settings, rows).run())
    except PagetideError as error:
        print(f"pagetide bench: {error}", file=sys.stderr)
        return EXIT_SETTING if isinstance(error, SettingError) else EXIT_FAILED


class _Bench:
    """One run from the first question to the report."""

    def __init__(self, settings: Settings, rows: list[Row] | None) -> None:
        self._settings, self._rows = settings, rows
        headers = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._headers = headers
        self._client = Client(settings.url + settings.path, headers, settings.timeout)
        if settings.json not in (None, "-"):
            _check_writable(settings.json)

    async def run(self) -> int:
        """The exit code, after the report."""
        settings, stop = self._settings, asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        with contextlib.closing(self._client):
            async with Target(settings.url, self._headers) as target:
                preparing = asyncio.create_task(self._prepare(target))
                if not await _unless(stop, preparing):
                    return EXIT_INTERRUPTED
                model, make = preparing.result()
                log.info("model %s, seed %d", model.name, settings.seed)
                await self._warm_up(model, make, stop)
                before = await target.metrics()
                load = await self._load(model, make, stop)
                queue = self._queue(before, await target.metrics(), len(load.outcomes))
        return self._report(summarize(load.outcomes, queue), stop.is_set(), load.server_is_gone)

    # ---- before

    async def _prepare(self, target: Target) -> tuple[Model, Callable[[Shape], bytes]]:
        """The model, and how a request's body is made."""
        settings = self._settings
        model = await target.model(settings.model)
        if settings.prompts == "ids" and model.vocab_size is None:
            raise SettingError("--prompts", "ids", "the server does not report its vocabulary's size")
        if model.vocab_size is not None and settings.prompts != "text" and not settings.chat:
            prompts = Prompts(settings.seed, vocab_size=model.vocab_size)
        else:
            ruler = await target.measure(model.name, Prompts(settings.seed), settings.chat)
            prompts = Prompts(settings.seed, measure=ruler)
        fields: dict[str, Any] = {"model": model.name, "stream": True, "temperature": settings.temperature}
        fields["stream_options"] = {"include_usage": True}
        if settings.ignore_eos:
            fields["ignore_eos"] = True
        return model, lambda shape: body(shape, prompts.make(shape), settings.chat, fields)

    async def _warm_up(self, model: Model, make: Callable[[Shape], bytes], stop: asyncio.Event) -> None:
        settings = self._settings
        if not settings.warmup:
            return
        shapes = closed(_fitting(settings.mix, model), random.Random(f"{settings.seed}/{WARM_UP}"))
        load = Load(self._client.post, make, stop)
        await load.closed_loop(within(shapes, settings.warmup, None), settings.concurrency or settings.warmup)
        log.info("warmed up by %d requests, %d failed", len(load.outcomes), load.failed)

    # ---- the run

    async def _load(self, model: Model, make: Callable[[Shape], bytes], stop: asyncio.Event) -> Load:
        settings = self._settings
        shapes, count = self._shapes(model)
        load = Load(self._client.post, make, stop)
        async with shown(load, count, settings.duration):
            if settings.is_open_loop:
                await load.open_loop(shapes, settings.concurrency)
            else:
                await load.closed_loop(shapes, settings.concurrency or 1, settings.duration)
        return load

    def _shapes(self, model: Model) -> tuple[Iterator[Shape], int | None]:
        """What to send, and how many that will be, where it is known."""
        settings, rng = self._settings, random.Random(f"{self._settings.seed}/{LOAD}")
        if self._rows is not None:
            chosen = within(replayed(self._rows, settings.speed), settings.requests, settings.duration)
            fitting = _that_fit(list(chosen), model)
            return iter(fitting), len(fitting)
        mix = _fitting(settings.mix, model)
        if settings.rate is None:
            return within(closed(mix, rng), settings.requests, None), settings.requests
        arrivals = poisson(settings.rate, random.Random(f"{settings.seed}/arrivals"))
        return within(made_up(mix, arrivals, rng), settings.requests, settings.duration), settings.requests

    # ---- after

    def _queue(self, before: str, after: str, sent: int) -> Distribution | None:
        try:
            found = queue_time(before, after)
        except ValueError as error:
            log.warning("the server's /metrics cannot be read: %s", error)
            return None
        if found is not None and found.count > sent:
            log.warning("the server had %d requests, %d of them from here: queue times are of all", found.count, sent)
        return found

    def _report(self, summary: Summary, interrupted: bool, gone: bool) -> int:
        settings = self._settings
        text = report.table(summary, settings.is_open_loop)
        print(text, file=sys.stderr if settings.json == "-" else sys.stdout, flush=True)
        if settings.json is not None:
            written = json.dumps(report.document(summary, settings.shown()), indent=1) + "\n"
            if settings.json == "-":
                sys.stdout.write(written)
            else:
                Path(settings.json).write_text(written, encoding="utf-8")
        problems = [problem for slo in settings.slos if (problem := slo.failure(summary))]
        if not summary.ok:
            problems.insert(0, "no request succeeded")
        if gone:
            problems.insert(0, "the server is gone: it has refused every connection of late, so the run was ended")
        for problem in problems:
            print(f"pagetide bench: {problem}", file=sys.stderr)
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED if problems else 0


async def _unless(stop: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for the task; False, and it is cancelled, if `stop` is set first."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        return False
    return True


def _fitting(mix: Mix, model: Model) -> Mix:
    """The mix, if its longest request is not too long for the model.

    Raises:
        SettingError: it is; says both numbers.
    """
    if model.max_model_len is not None and mix.longest > model.max_model_len:
        parts = f"{mix.prefix_tokens} + {mix.prompt} + {mix.output}"
        problem = f"with prefix and answer up to {mix.longest} tokens; the model takes {model.max_model_len}"
        raise SettingError("--input-tokens", parts, problem)
    return mix


def _that_fit(shapes: list[Shape], model: Model) -> list[Shape]:
    """Those of a trace that are not too long for the model; says how many are.

    Raises:
        SettingError: none fits.
    """
    limit = model.max_model_len
    if limit is None:
        return shapes
    kept = [shape for shape in shapes if shape.prompt_tokens + shape.output_tokens <= limit]
    if not kept:
        raise SettingError("--trace", len(shapes), f"no request fits the model's {limit} tokens")
    if len(kept) < len(shapes):
        log.warning(
            "%d of %d requests are left out: longer than the model's %d tokens",
            len(shapes) - len(kept),
            len(shapes),
            limit,
        )
    return kept


def _check_writable(path: str) -> None:
    """Before the run, since after it the figures would be lost.

    Raises:
        SettingError: the file cannot be written.
    """
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise SettingError("--json", path, f"cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
