"""Asks a running `pagetide up` about its services."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from pagetide_spec.errors import SettingError

from .status import PATH_STATUS


def fetch_status(host: str, port: int) -> dict[str, Any]:
    """What the `pagetide up` on this port reports about itself.

    Raises:
        SettingError: none answers there.
    """
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{PATH_STATUS}", timeout=5) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except (OSError, ValueError) as error:
        raise SettingError("--port", port, f"no `pagetide up` answers on {host} ({error})") from None
