"""API keys from the settings."""

from __future__ import annotations

from pathlib import Path

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError


def read_keys(config: EngineConfig) -> list[str]:
    """All keys that the settings name; an empty list means open to all.

    Raises:
        SettingError: the file cannot be read, or a setting that asks for keys holds none.
    """
    keys = []
    if config.api_key is not None:
        found = [key.strip() for key in config.api_key.split(",") if key.strip()]
        if not found:
            raise SettingError("api_key", config.api_key, "holds no key")
        keys += found
    if config.api_key_file is not None:
        keys += _from_file(config.api_key_file)
    return keys


def _from_file(name: str) -> list[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("api_key_file", name, f"cannot be read: {error}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise SettingError("api_key_file", name, "holds no key")
    return found
