"""What the environment must say before FastAPI is imported: it imports OpenTelemetry, which refuses wrong variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE, STANDARD = "OTEL_PROPAGATORS", "tracecontext,baggage"


def _hints() -> Iterator[str]:
    try:
        with contextlib.suppress(ImportError):
            import opentelemetry.propagate  # noqa: F401 - this is where the variable is read
    except ValueError as error:
        yield f"{VARIABLE}: {os.environ.get(VARIABLE)!r}: {error} {STANDARD} are used instead."
        os.environ[VARIABLE] = STANDARD


# To be logged, once it is known how.
HINTS = tuple(_hints())
