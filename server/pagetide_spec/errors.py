"""The errors a user can cause with a configuration or a resource: each names the field, the value and the way out."""

from __future__ import annotations

from typing import Self

SHOWN_LENGTH = 80


class PagetideError(Exception):
    """Base of all errors that Pagetide raises on purpose; its text is one line for a person."""


class NamedError(PagetideError):
    """An error that names a setting.

    Attributes:
        field: name of the setting, in the spelling of whoever gave it (`max_num_seqs`, `--max-num-seqs`,
            `PAGETIDE_MAX_NUM_SEQS`, `spec.engine.maxNumSeqs`).
        value: what was given.
        problem: what is wrong and what would be right.
    """

    def __init__(self, field: str, value: object, problem: str) -> None:
        self.field, self.value, self.problem = field, value, problem
        super().__init__(f"{field}: {shorten(value)}: {problem}")

    def renamed(self, field: str) -> Self:
        """The same error under the name by which the user gave the setting."""
        return type(self)(field, self.value, self.problem)


class SettingError(NamedError):
    """A setting has a wrong value."""


class UnavailableError(NamedError):
    """What a setting names cannot be had now; the setting itself may be right."""


class ResourceError(PagetideError):
    """A resource does not have the promised form.

    Attributes:
        problems: one `SettingError` for each fault found, each with the path of its field.
    """

    def __init__(self, problems: list[SettingError], source: str = "") -> None:
        self.problems, self.source = problems, source
        text = "; ".join(str(p) for p in problems)
        super().__init__(f"{source}: {text}" if source else text)


def install_hint(extra: str) -> str:
    """The command that installs an extra, from a checkout: no release is published on a package index."""
    return f"pip install -e '.[{extra}]' in a checkout of Pagetide"


def shorten(value: object) -> str:
    """A value as error messages show it."""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."


def first_line(error: BaseException) -> str:
    """The beginning of an error's text, for a message of one line; its type's name where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
