"""Where converted models go."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"
