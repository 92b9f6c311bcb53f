"""Who leaves."""

import pytest

from pagetide_operator.autoscaling.guard import Candidate, choose_victim, replicaset_victim


@pytest.mark.parametrize(
    ("candidates", "victim"),
    [
        pytest.param([("a", 5, 0, 0), ("b", 1, 900, 900)], "b", id="the least in flight"),
        pytest.param([("a", 1, 500, 500), ("b", 1, 100, 900)], "b", id="then the coldest cache"),
        pytest.param([("a", 1, 0, 500), ("b", 1, 0, 100)], "b", id="then the emptiest cache"),
        pytest.param([("a", 9, 0, 0), ("b", None, 0, 0)], "a", id="a silent one last: it may be as busy as can be"),
        pytest.param([], None, id="nobody"),
    ],
)
def test_who_leaves(load, candidates, victim):
    def made(name, running, hot, cached):
        found = None if running is None else load(running=running, hit_tokens=hot, kv_cached=cached)
        return Candidate(name, True, 1.0, found)

    found = choose_victim([made(*c) for c in candidates])
    assert (found and found.name) == victim


def test_one_that_does_not_answer_yet_leaves_first(load):
    starting = Candidate("b", is_ready=False)
    assert choose_victim([Candidate("a", True, 1.0, load()), starting]) is starting


def test_where_the_cluster_chooses_its_choice_is_ours(load):
    """A ReplicaSet without deletion costs takes pods with neighbours first, then the youngest."""
    old, young, crowded = (Candidate(n, True, at, load(), near) for n, at, near in
                           (("a", 1.0, 0), ("b", 9.0, 0), ("c", 5.0, 1)))  # fmt: skip
    assert replicaset_victim([old, young]) is young
    assert replicaset_victim([old, young, crowded]) is crowded
