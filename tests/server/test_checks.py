"""What is wrong with a parameter, in words."""

from __future__ import annotations

import pytest

from pagetide_server.wire.checks import _described


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param("Expected `int | null`, got `str`", "must be a whole number or None", id="of another type"),
        pytest.param("Expected `str`, got `int` - at `$[0]`", "its entries must be text", id="an entry of another"),
        pytest.param("Expected `int`, got `str` - at `key` in `$`", "its keys must be a whole number", id="a key"),
        pytest.param("Number out of range", "must hold in a number of double precision, which ends at 1.8e308",
                     id="too large"),
        pytest.param("Invalid value 'x'", "has a wrong type", id="something that the library may say one day"),
    ],
)  # fmt: skip
def test_a_message_of_the_library_becomes_words(message: str, words: str) -> None:
    assert _described(message) == words
