"""The autoscaler in a cluster: who leaves, when, and who stays after all."""

import pytest

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.times import timestamp
from pagetide_spec.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAINING, ANNOTATION_PAUSED, KIND

from .world import QUICK, running, until


async def test_one_leaves_after_it_was_drained(world):
    world.add_pods("a", "b", "c")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 3
    world.loads = {"a": {"running": 2}, "b": {"running": 1}, "c": {"running": 2}}
    await world.tick()
    assert world.annotations("b") == {
        ANNOTATION_DRAINING: timestamp(world.now), ANNOTATION_DELETION_COST: "-1000000000"
    }  # fmt: skip
    await world.tick(count=3)
    assert world.status["desiredReplicas"] == 3, "a stream runs there"
    world.loads["b"] = {}
    await world.tick()
    assert world.status["desiredReplicas"] == 2
    assert world.status["autoscaling"]["decisions"][-1]["limiter"] == "OneAtATime"


async def test_a_leaver_that_another_left_in_place_of_leaves_next(world):
    """A ReplicaSet takes one that is not ready before the one that was chosen."""
    world.add_pods("a", "b", "c")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 3
    world.loads = {"a": {"running": 1}, "c": {"running": 1}}
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("b")
    await world.tick()
    assert world.status["desiredReplicas"] == 2
    world.store.remove("Pod", world.store._objects["Pod"]["ns", "c"])
    await world.tick(count=4)
    assert world.status["desiredReplicas"] == 1


@pytest.mark.parametrize("fraction", [0.0, 0.75])
async def test_a_leaver_waits_until_gateways_know(world, fraction):
    world.now += fraction
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("a")
    await world.tick(2.5)
    assert world.status["desiredReplicas"] == 2
    await world.tick(1.5)
    assert world.status["desiredReplicas"] == 1


async def test_a_stream_that_does_not_end_holds_a_leaver_for_drain_seconds(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    world.loads = {"a": {"running": 1}, "b": {"running": 3}}
    await world.tick()
    await world.tick(count=11)
    assert world.status["desiredReplicas"] == 2
    await world.tick()
    assert world.status["desiredReplicas"] == 1


async def test_a_leaver_stays_when_the_load_comes_back(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    world.loads = {"a": {"running": 1}, "b": {"running": 10, "waiting": 3}}
    await world.tick()
    assert ANNOTATION_DRAINING not in world.annotations("a")
    assert ANNOTATION_DELETION_COST not in world.annotations("a")
    assert world.status["desiredReplicas"] == 2


async def test_a_leaver_is_marked_until_it_is_gone_lest_a_busy_one_goes_in_its_place(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    world.loads = {"b": {"running": 3}}
    await world.tick(count=2)
    assert world.status["desiredReplicas"] == 1
    await world.tick(count=3)  # the Deployment has not been told yet
    assert world.annotations("a")[ANNOTATION_DELETION_COST] == "-1000000000"
    world.loads = {"b": {"running": 10, "waiting": 3}}
    await world.tick()
    assert world.status["desiredReplicas"] == 2
    assert ANNOTATION_DRAINING not in world.annotations("a"), "both are wanted again"


@pytest.mark.parametrize(
    ("minor", "leaver"),
    [pytest.param("21", "b", id="who its ReplicaSet will take"), pytest.param("22+", "a", id="who has least to do")],
)
async def test_who_leaves_depends_on_the_clusters_version_told_late_or_not(world, monkeypatch, minor, leaver):
    monkeypatch.setattr("pagetide_operator.discovery.RETRY_SECONDS", 0)
    world.api.minor, world.api.hiccups = minor, [ApiError(503, "Unavailable", "starting")]
    world.add_pods("a")
    world.now += 30
    world.add_pods("b")  # the younger one
    world.loads["b"] = {"running": 1}
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    async with running(world.restarted()):
        await until(lambda: any(ANNOTATION_DRAINING in world.annotations(pod) for pod in "ab"))
    assert ANNOTATION_DRAINING in world.annotations(leaver)


async def test_a_leaver_that_cannot_be_patched_keeps_no_service_from_growing(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("a")
    world.api.broken = ("a",)
    world.loads = {"b": {"running": 10, "waiting": 20}}
    await world.tick()
    assert world.status["desiredReplicas"] == 4


async def test_a_service_that_is_not_scaled_any_more_keeps_no_leaver(world, service):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("a")
    world.store.put(KIND, service(replicas=2))
    await world.tick()
    assert ANNOTATION_DRAINING not in world.annotations("a")


@pytest.mark.parametrize(
    ("window", "desired", "is_draining"),
    [
        pytest.param(0, 1, True, id="it goes on where nothing speaks against it"),
        pytest.param(30, 2, False, id="nothing shrinks before the new window is full"),
    ],
)
async def test_a_restart_in_the_midst_of_draining(world, service, window, desired, is_draining):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    world.loads = {"a": {"running": 1}}
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("b")
    world.restarted()
    if window:
        world.store.put(KIND, service(status=world.status, autoscaling={"maxReplicas": 4, "behavior": {
            "scaleDown": {"stabilizationWindowSeconds": window}}}))  # fmt: skip
    await world.tick()
    assert world.status["desiredReplicas"] == desired
    assert (ANNOTATION_DRAINING in world.annotations("b")) == is_draining


async def test_a_service_that_is_paused_in_the_midst_of_draining_keeps_no_leaver(world, service):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("a")
    world.store.put(KIND, service(autoscaling=QUICK, annotations={ANNOTATION_PAUSED: "true"}))
    await world.tick()
    assert ANNOTATION_DRAINING not in world.annotations("a"), "nobody removes it, and it would get no requests"
