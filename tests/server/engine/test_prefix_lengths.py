"""What several requests have in common, counted for block sizes that are not in use."""

from __future__ import annotations

import pytest

from pagetide_server.engine.blocks import chain_key, root_key
from pagetide_server.engine.prefix_lengths import PrefixLengths


def observe(statistic: PrefixLengths, tokens: list[int], salt: str = "") -> int:
    size, keys = statistic.block_size, [root_key(salt)]
    for start in range(0, len(tokens), size):
        keys.append(chain_key(keys[-1], tokens[start : start + size]))
    return statistic.observe(tokens, keys.__getitem__)


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        pytest.param([1, 2, 3], [4, 5], 0, id="nothing in common"),
        pytest.param([1, 2, 3], [1, 2, 9], 2, id="within the first block"),
        pytest.param([*range(10)], [*range(10)], 10, id="the same again"),
        pytest.param([*range(10)], [*range(6), 99], 6, id="up to the middle of the second block"),
        pytest.param([*range(8)], [*range(12)], 8, id="a continuation at a block's end"),
        pytest.param([*range(6)], [*range(12)], 6, id="a continuation in the middle of a block"),
        pytest.param([*range(12)], [*range(6)], 6, id="a shorter one"),
    ],
)
def test_common_prefix(first, second, common):
    statistic = PrefixLengths(4)
    assert observe(statistic, first) == 0
    assert observe(statistic, second) == common
    assert sum(statistic.remainders) == (common > 0)
    assert common == 0 or statistic.remainders[common % 4] == 1


def test_what_other_block_sizes_would_have_saved():
    statistic = PrefixLengths(16)
    system = list(range(44))
    for question in range(11):
        observe(statistic, [*system, 1000 + question, 7])
    # Ten prompts share 44 tokens with one before: 5 blocks of 8, 2 of 16, 1 of 32.
    assert statistic.saved_tokens == {8: 400, 16: 320, 32: 320}
    assert statistic.remainders[44 % 16] == 10
    assert statistic.tail_tokens == 120
    assert statistic.summary() == (
        "11 prompts of 506 tokens; of prefixes that they share, an unlimited cache saves 400 with blocks of 8, "
        "320 with blocks of 16, 320 with blocks of 32; 120 tokens lie behind the last full block of 16"
    )


def test_a_repeated_prompt_still_computes_its_last_token():
    statistic = PrefixLengths(8)
    observe(statistic, list(range(16)))
    observe(statistic, list(range(16)))
    assert statistic.saved_tokens[8] == 8


def test_prompts_with_different_salts_share_nothing():
    statistic = PrefixLengths(4)
    observe(statistic, [1, 2, 3], salt="a")
    assert observe(statistic, [1, 2, 3], salt="b") == 0


def test_the_statistic_remembers_a_bounded_number_of_beginnings():
    statistic = PrefixLengths(4, capacity=10)
    observe(statistic, list(range(1000)))
    assert len(statistic._continuations) == 10
    # Of a long prompt it keeps the beginning.
    assert observe(statistic, list(range(50))) == 40
