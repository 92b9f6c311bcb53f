"""What programs that run in the tests' process set for all of it, and how it is put back."""

from __future__ import annotations

import gc
import logging
import os
import signal


class ProcessState:
    """What a program of ours sets for its whole process.

    That is: the environment; handlers of SIGINT and SIGTERM; level, handlers and propagation of loggers; whether
    warnings are logged; a frozen heap. Nothing else: no working directory, no sys.path, no number of torch's threads.
    A logger that was not there before has no level again if it is ours; a library's has the one that its import set.
    """

    def __init__(self) -> None:
        self._loggers = [(each, each.level, each.handlers[:], each.propagate) for each in _loggers()]
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._environment, self._frozen = dict(os.environ), gc.get_freeze_count()

    def put_back(self) -> None:
        """Make it so again."""
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        os.environ.update(self._environment)
        for number, handler in self._handlers.items():
            if handler is not None:  # one that was not set from Python
                signal.signal(number, handler)
        self._put_loggers_back()
        if not self._frozen:
            gc.unfreeze()

    def _put_loggers_back(self) -> None:
        logging.captureWarnings(False)
        for logger in set(_loggers()).difference(logger for logger, *_ in self._loggers):
            if logger.name.startswith("pagetide"):
                logger.setLevel(logging.NOTSET)
        for logger, level, handlers, propagate in self._loggers:
            logger.setLevel(level)
            logger.handlers[:], logger.propagate = handlers, propagate
        for logger in _loggers():
            logger.handlers[:] = [each for each in logger.handlers if not _is_closed(each)]


def _loggers() -> list[logging.Logger]:
    """The root and all that have been asked for; not the places that only their children hold."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return [each for each in loggers if isinstance(each, logging.Logger)]


def _is_closed(handler: logging.Handler) -> bool:
    """Whether it would write to what a test captured."""
    return bool(getattr(getattr(handler, "stream", None), "closed", False))
