"""How fast replicas change: HorizontalPodAutoscaler v2's rules, row by row."""

import pytest

from pagetide_operator.autoscaling.behavior import Allowed, Change, Wish, allowed

UP = {"type": "Pods", "value": 1, "periodSeconds": 60}
DOWN = {"type": "Percent", "value": 50, "periodSeconds": 60}
HALF = {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [DOWN]}}


def rules(direction, **fields):
    return {direction: {"stabilizationWindowSeconds": 0, **fields}}


@pytest.mark.parametrize(
    ("current", "wishes", "changes", "behavior", "found"),
    [
        pytest.param(2, [(0, 2)], [], {}, (2, ""), id="as it is"),
        pytest.param(2, [(100, 4)], [], {}, (4, ""), id="up at once"),
        pytest.param(1, [(100, 9)], [], {}, (5, "ScalingPolicy"), id="up by four or to the double, whichever is more"),
        pytest.param(6, [(100, 30)], [], {}, (12, "ScalingPolicy"), id="up to the double"),
        pytest.param(5, [(100, 9)], [(95, 1, 5)], {}, (5, "ScalingPolicy"), id="up: what was added in it counts"),
        pytest.param(5, [(100, 9)], [(84, 1, 5)], {}, (9, ""), id="up: what was added before it does not"),
        pytest.param(
            4, [(100, 9)], [(95, 1, 5), (99, 5, 4)], {}, (5, "ScalingPolicy"), id="up: what was removed counts, too"
        ),
        pytest.param(
            4, [(100, 9)], [], rules("scaleUp", policies=[UP]), (5, "ScalingPolicy"), id="up: one a minute"
        ),
        pytest.param(
            4,
            [(100, 90)],
            [],
            rules("scaleUp", selectPolicy="Min", policies=[UP, {**UP, "type": "Percent", "value": 100}]),
            (5, "ScalingPolicy"),
            id="up: the least of the policies",
        ),
        pytest.param(
            4, [(100, 9)], [], rules("scaleUp", selectPolicy="Disabled"), (4, "ScaleUpDisabled"), id="up: not at all"
        ),
        pytest.param(
            2,
            [(50, 3), (100, 9)],
            [],
            {"scaleUp": {"stabilizationWindowSeconds": 60}},
            (3, "StabilizationWindow"),
            id="up to the least wish of the window",
        ),
        pytest.param(
            2,
            [(30, 3), (100, 9)],
            [],
            {"scaleUp": {"stabilizationWindowSeconds": 60}},
            (6, "ScalingPolicy"),
            id="up: a wish before the window does not count",
        ),
        pytest.param(6, [(0, 5), (100, 1)], [], {}, (5, "StabilizationWindow"), id="down to the greatest of 300 s"),
        pytest.param(6, [(-201, 6), (100, 1)], [], {}, (1, ""), id="down: a wish before the window does not count"),
        pytest.param(6, [(0, 9), (100, 1)], [], {}, (6, "StabilizationWindow"), id="a greater wish is over: stay"),
        pytest.param(9, [(100, 1)], [], HALF, (4, "ScalingPolicy"), id="down by half, rounded down"),
        pytest.param(5, [(100, 1)], [(90, 8, 5)], HALF, (4, "ScalingPolicy"), id="down: half of those at the begin"),
        pytest.param(
            5,
            [(100, 1)],
            [],
            rules("scaleDown", selectPolicy="Min", policies=[DOWN, {**DOWN, "type": "Pods", "value": 1}]),
            (4, "ScalingPolicy"),
            id="down: the least of the policies",
        ),
        pytest.param(
            5, [(100, 1)], [], rules("scaleDown", selectPolicy="Disabled"), (5, "ScaleDownDisabled"), id="down: never"
        ),
    ],
)  # fmt: skip
def test_how_far_a_wish_is_followed(scaling, current, wishes, changes, behavior, found):
    wished = [Wish(at, replicas) for at, replicas in wishes]
    made = [Change(*change) for change in changes]
    settings = scaling(maxReplicas=99, behavior=behavior)
    assert allowed(current, wished, made, settings, 100) == Allowed(*found)
