"""One pod at a time where there is no spare GPU, and only then."""

import pytest

from pagetide_operator.cluster.times import seconds_of
from pagetide_operator.desired.children import ONE_AT_A_TIME
from pagetide_operator.verdicts.rollout import choose_rollout, is_rolling
from pagetide_spec.inference_service import Rollout
from pagetide_spec.names import ANNOTATION_TEMPLATE_HASH
from pagetide_spec.resource import parse

SINCE = "2030-01-01T00:00:00Z"
ASKED = Rollout(1, 0)


def template(version):
    return {"metadata": {"annotations": {ANNOTATION_TEMPLATE_HASH: version}}}


def deployment(rollout=ASKED, replicas=2, updated=1, observed=1):
    rolling = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {
        "metadata": {"generation": 1},
        "spec": {"template": template("new"), "strategy": {"rollingUpdate": rolling}},
        "status": {"replicas": replicas, "updatedReplicas": updated, "observedGeneration": observed},
    }


def pod(version, message=None, going=False):
    metadata = {**template(version)["metadata"]} | ({"deletionTimestamp": SINCE} if going else {})
    waits = {"type": "PodScheduled", "status": "False", "message": message, "lastTransitionTime": SINCE}
    return {"metadata": metadata, "status": {"conditions": [waits] if message else []}}


def restarted(thing):
    """As `kubectl rollout restart` leaves a template, and the pods made from it."""
    thing["metadata"]["annotations"] |= {"kubectl.kubernetes.io/restartedAt": SINCE}
    return thing


def restarting():
    out = deployment()
    restarted(out["spec"]["template"])
    return out


GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
OLD = pod("old")


@pytest.mark.parametrize(
    ("live", "pods", "after", "expected"),
    [
        pytest.param(None, [], 60, ASKED, id="nothing there yet"),
        pytest.param(deployment(), [OLD, pod("new", GPU)], 60, ONE_AT_A_TIME, id="the surge pod has no GPU"),
        pytest.param(
            restarting(),
            [pod("new"), restarted(pod("new", GPU))],
            60,
            ONE_AT_A_TIME,
            id="the same version, by kubectl rollout restart",
        ),
        pytest.param(deployment(), [OLD, pod("new", GPU)], 5, ASKED, id="it has not waited long enough"),
        pytest.param(deployment(), [OLD, pod("new")], 60, ASKED, id="the surge pod found a GPU"),
        pytest.param(
            deployment(), [OLD, pod("new", "1 Insufficient cpu.")], 60, ASKED, id="a node with more CPU may come"
        ),
        pytest.param(deployment(), [pod("new", GPU)], 60, ASKED, id="no old pod holds what it waits for"),
        pytest.param(
            deployment(), [pod("old", going=True), pod("new", GPU)], 60, ASKED, id="the old pod is going already"
        ),
        pytest.param(deployment(), [pod("old", GPU), pod("new")], 60, ASKED, id="an old pod waits: no matter"),
        pytest.param(deployment(ONE_AT_A_TIME), [OLD, pod("new")], 60, ONE_AT_A_TIME, id="until the rollout is over"),
        pytest.param(deployment(ONE_AT_A_TIME, 1, 1), [pod("new")], 60, ASKED, id="then as asked again"),
    ],
)
def test_rollout(service, live, pods, after, expected):
    assert choose_rollout(parse(service()), live, pods, 30, seconds_of(SINCE) + after) == expected


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param(deployment(replicas=2, updated=2), False, id="all pods are new"),
        pytest.param(deployment(replicas=2, updated=1), True, id="an old one is left"),
        pytest.param(deployment(replicas=2, updated=2, observed=0), True, id="nobody has looked yet"),
        pytest.param(deployment(replicas=0, updated=0), False, id="no pods"),
    ],
)
def test_is_rolling(live, expected):
    assert is_rolling(live) is expected
