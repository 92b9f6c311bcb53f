"""What the setting `chat_template` may be: a template, or a file with one."""

from __future__ import annotations

from pathlib import Path

from .errors import SettingError


def template_text(setting: str) -> str:
    """The template's text, from the setting that holds it or names its file.

    Raises:
        SettingError: it is no template, and the file cannot be read.
    """
    if "{" in setting or "\n" in setting:
        return setting
    try:
        return Path(setting).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = f"is neither a template nor a file that can be read ({error})"
        raise SettingError("chat_template", setting, problem) from error
