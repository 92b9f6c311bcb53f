"""What the environment must say before FastAPI is imported: it imports OpenTelemetry, which refuses wrong variables."""

from __future__ import annotations

import os

from pagetide_spec.errors import first_line, shorten

VARIABLE, STANDARD = "OTEL_PROPAGATORS", "tracecontext,baggage"


def prepare_environment() -> list[str]:
    """Replace a value that OpenTelemetry cannot take, if it is installed; what to tell the user of it."""
    given = os.environ.get(VARIABLE)
    if not given:
        return []
    try:
        import opentelemetry.propagate  # noqa: F401 - this is where the variable is read
    except Exception as error:  # noqa: BLE001 - it loads whatever the variable names
        if isinstance(error, ModuleNotFoundError) and error.name in ("opentelemetry", "opentelemetry.propagate"):
            return []
        os.environ[VARIABLE] = STANDARD
        return [f"{VARIABLE}: {shorten(given)}: {first_line(error).rstrip('.')}; {STANDARD} are used instead"]
    return []
