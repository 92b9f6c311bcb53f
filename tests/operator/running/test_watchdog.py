"""A dead watch is distinguished from a slow one."""

import pytest

from pagetide_operator.running.watchdog import Watchdog


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param([({"Pod": 1}, {"Pod": 5})], [], id="one difference may be haste"),
        pytest.param([({"Pod": 1}, {"Pod": 5}), ({"Pod": 2}, {"Pod": 5})], ["Pod"], id="two and no event between"),
        pytest.param([({"Pod": 1}, {"Pod": 5}), ({"Pod": 2}, {"Pod": 6})], [], id="two with an event between"),
        pytest.param([({"Pod": 1}, {}), ({"Pod": 0}, {}), ({"Pod": 1}, {})], [], id="two with a good list between"),
        pytest.param([({"Pod": 1}, {}), ({"Service": 1}, {})], [], id="two of different kinds"),
        pytest.param([({"Monitor": 1}, {}), ({"Monitor": 1}, {})], [], id="two of a kind that nobody watches"),
    ],
)
def test_dead_watches(lists, expected):
    watchdog = Watchdog(["Pod", "Service"])
    assert [watchdog.dead_watches(*one) for one in lists][-1] == expected
