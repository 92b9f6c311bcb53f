import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide_server.text.stop import StopFinder

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def first_completed(text: str, stops: list[str]) -> tuple[int, int] | None:
    """(start, end) of the match that ends first, the longest of those; by str.find alone."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (min(found)[1], min(found)[0]) if found else None


def longest_beginning(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_finds_what_find_finds_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    finder, seen = StopFinder(tuple(stops)), ""
    for piece in pieces:
        match = finder.feed(piece)
        seen += piece
        expected = first_completed(seen, stops)
        assert (match and (match.start, match.end)) == expected
        if match:
            assert seen[match.start : match.end] == match.stop
            return
        assert finder.held == longest_beginning(seen, stops)


@given(LETTERS, LETTERS, STOPS)
def test_a_match_counts_when_it_ends_after_the_quiet_time_though_it_began_before(
    quiet: str, loud: str, stops: list[str]
) -> None:
    finder = StopFinder(tuple(stops))
    assert finder.feed(quiet, may_stop=False) is None
    match = finder.feed(loud)
    text = quiet + loud
    ends = [end for stop in stops for end in range(len(quiet) + 1, len(text) + 1) if text[:end].endswith(stop)]
    assert (match.end if match else None) == min(ends, default=None)


@pytest.mark.parametrize(
    ("stops", "pieces", "found"),
    [
        pytest.param((), ["anything"], None, id="no stop string never matches"),
        pytest.param(("",), ["anything"], None, id="an empty stop string never matches"),
        pytest.param(("end",), ["the e", "n", "d of"], "end", id="across three pieces"),
        pytest.param(("aab",), ["a", "a", "a", "b"], "aab", id="a false beginning turns into a true one"),
        pytest.param(("abcdef", "cd"), ["abcdef"], "cd", id="the one that ends first, though it starts later"),
        pytest.param(("d", "bcd"), ["abcd"], "bcd", id="of two that end together the longer"),
        pytest.param(("\ud83d\ude00",), ["\ud83d\ude00"], "\ud83d\ude00", id="characters outside the basic plane"),
    ],
)
def test_named_cases(stops: tuple[str, ...], pieces: list[str], found: str | None) -> None:
    finder = StopFinder(stops)
    matches = [match.stop for piece in pieces if (match := finder.feed(piece))]
    assert matches == ([found] if found else [])


def test_a_long_stop_string_costs_no_more_for_each_new_character() -> None:
    finder = StopFinder(("a" * 100_000,))
    looks = 0

    class Counting(str):
        def __getitem__(self, index: object) -> str:
            nonlocal looks
            looks += 1
            return str.__getitem__(self, index)  # type: ignore[index]

    finder._patterns[0].text = Counting(finder._patterns[0].text)
    finder.feed("a" * 50_000)
    for _ in range(2_000):
        assert finder.feed("a" * 20 + "b") is None
    assert finder.held == 0
    # Knuth, Morris and Pratt: a character is looked at once, and once more for each one that had matched before.
    assert looks < 5 * (50_000 + 2_000 * 21)
