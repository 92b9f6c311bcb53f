"""Blocks: states, reference counts, the order of eviction, keys."""

from __future__ import annotations

import time

import pytest

from pagetide_server.engine.blocks import BlockPool, chain_key, root_key

KEYS = [bytes([i]) * 16 for i in range(10)]


def states(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.cached, pool.used


def pool_with_cached(count: int, size: int = 4) -> BlockPool:
    """A pool whose first `count` blocks are cached under KEYS, released one table with all of them."""
    pool = BlockPool(size)
    blocks = pool.allocate(count)
    for block, key in zip(blocks, KEYS, strict=False):
        pool.register(block, key)
    pool.release(blocks)
    return pool


def test_a_new_pool_is_free():
    assert states(BlockPool(5)) == (5, 0, 0)


def test_states_add_up_through_a_life():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert states(pool) == (1, 0, 3)
    pool.register(blocks[0], KEYS[0])
    assert states(pool) == (1, 0, 3)
    pool.release(blocks)
    assert states(pool) == (3, 1, 0)
    pool.take([blocks[0]])
    assert states(pool) == (3, 0, 1)
    pool.check_integrity([[blocks[0]]])


@pytest.mark.parametrize(
    ("asked", "got", "failures"),
    [
        pytest.param(0, 0, 0, id="nothing is always to be had"),
        pytest.param(4, 4, 0, id="all of them"),
        pytest.param(5, None, 1, id="one too many changes nothing and is counted"),
    ],
)
def test_allocating(asked, got, failures):
    pool = BlockPool(4)
    blocks = pool.allocate(asked)
    assert (None if blocks is None else len(blocks)) == got
    assert pool.failures == failures
    assert pool.allocations == (got or 0)
    assert pool.used == (got or 0)


def test_allocation_prefers_free_blocks_to_cached_ones():
    pool = pool_with_cached(2, size=4)
    pool.allocate(2)
    assert pool.lookup(KEYS[:2]) == [0, 1]


def test_the_end_of_a_released_table_is_evicted_before_its_beginning():
    pool = pool_with_cached(3, size=3)
    pool.allocate(1)
    assert pool.lookup(KEYS[:3]) == [0, 1]
    pool.allocate(1)
    assert pool.lookup(KEYS[:3]) == [0]


def test_the_least_recently_released_is_evicted_first():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, KEYS[0])
    pool.register(second, KEYS[1])
    pool.release([first])
    pool.release([second])
    # Using the older one again makes it the younger one.
    pool.take([first])
    pool.release([first])
    pool.allocate(1)
    assert pool.lookup(KEYS[:1]) == [first]
    assert pool.lookup(KEYS[1:2]) == []


def test_a_shared_block_stays_until_its_last_holder_releases_it():
    pool = pool_with_cached(1)
    pool.take([0])
    pool.take([0])
    pool.release([0])
    assert states(pool) == (3, 0, 1)
    pool.release([0])
    assert states(pool) == (3, 1, 0)


def test_a_used_block_is_never_evicted():
    pool = pool_with_cached(4, size=4)
    pool.take([2])
    assert sorted(pool.allocate(3)) == [0, 1, 3]
    assert pool.allocate(1) is None
    assert pool.lookup([KEYS[2]]) == [2]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(KEYS[:3], [0, 1, 2], id="all"),
        pytest.param(KEYS[:5], [0, 1, 2], id="the known beginning of a longer one"),
        pytest.param([KEYS[0], KEYS[9], KEYS[2]], [0], id="nothing behind a gap"),
        pytest.param([KEYS[9], KEYS[0]], [], id="no beginning"),
    ],
)
def test_lookup_finds_the_longest_known_beginning(keys, found):
    assert pool_with_cached(3).lookup(keys) == found


def test_lookup_is_a_question():
    pool = pool_with_cached(3, size=3)
    for _ in range(3):
        pool.lookup([KEYS[2]])
    # Had the lookup counted as use, block 2 would not be the first to go.
    assert pool.allocate(1) == [2]
    assert pool.refs == [0, 0, 1]
    pool.check_integrity([[2]])


def test_idle_counts_the_blocks_that_taking_would_make_unavailable():
    pool = pool_with_cached(3)
    pool.take([1])
    assert pool.idle([0, 1, 2]) == 2


def test_of_two_equal_blocks_the_first_stays_known_and_the_second_becomes_free():
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.register(first, KEYS[0])
    pool.register(second, KEYS[0])
    assert pool.lookup([KEYS[0]]) == [first]
    pool.release([second])
    assert states(pool) == (2, 0, 1)
    pool.release([first])
    assert states(pool) == (2, 1, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param((root_key(""), [1, 2]), (root_key("a"), [1, 2]), id="another salt"),
        pytest.param((root_key(""), [1, 2]), (root_key(""), [2, 1]), id="another order"),
        pytest.param((root_key(""), [1]), (root_key(""), [1, 0]), id="a zero more"),
        pytest.param((root_key(""), [256]), (root_key(""), [1]), id="other bytes of a number"),
        pytest.param((chain_key(root_key(""), [1]), [2]), (chain_key(root_key(""), [3]), [2]), id="another beginning"),
    ],
)
def test_different_texts_have_different_keys(left, right):
    assert chain_key(*left) != chain_key(*right)


def test_keys_are_long_enough_and_the_same_every_time():
    key = chain_key(root_key("salt"), range(16))
    assert key == chain_key(root_key("salt"), list(range(16)))
    assert len(key) * 8 >= 128


def test_a_salt_may_be_any_text_that_json_can_carry():
    assert root_key("\ud800") != root_key("")


@pytest.mark.parametrize(
    ("break_it", "tables"),
    [
        pytest.param(lambda pool: None, [[0], [0]], id="two tables hold a block with one reference"),
        pytest.param(lambda pool: None, [], id="no table holds a used block"),
        pytest.param(lambda pool: pool._free.append(1), [[0]], id="a block is free twice"),
        pytest.param(lambda pool: pool._free.pop(), [[0]], id="a block is lost"),
        pytest.param(lambda pool: pool._index.update({KEYS[0]: 3}), [[0]], id="a key names a block without it"),
        pytest.param(lambda pool: pool._cached.update({3: None}), [[0]], id="a block has two states"),
    ],
)
def test_check_integrity_notices(break_it, tables):
    pool = BlockPool(4)
    assert pool.allocate(1) == [0]
    break_it(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity(tables)


def test_the_cost_of_an_operation_does_not_grow_with_the_pool():
    def cost(size: int) -> float:
        pool = BlockPool(size)
        for i, block in enumerate(pool.allocate(size)):
            pool.register(block, i.to_bytes(16, "little"))
        pool.release(range(size))
        best = float("inf")
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                pool.release(pool.allocate(1))
            best = min(best, time.perf_counter() - start)
        return best

    # A linear operation would make this 400; the rest is room for caches and noise.
    assert cost(400_000) < 20 * cost(1_000)
