"""The autoscaler in a cluster: no service suffers from another's faults, and a paused one is left alone."""

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.scaler import actor
from pagetide_spec.names import ANNOTATION_PAUSED, KIND

from .world import QUICK, running, until


async def test_a_dead_pod_keeps_the_others_from_shrinking_not_from_growing(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    world.loads = {"a": None, "b": {"running": 1}}
    await world.tick(count=4)
    assert world.status["desiredReplicas"] == 2
    world.loads["b"] = {"running": 10, "waiting": 14}
    await world.tick()
    assert world.status["desiredReplicas"] == 3


async def test_a_service_whose_writes_hang_delays_no_other(world, service):
    world.store.put(KIND, service("odd", autoscaling=QUICK, status={"desiredReplicas": 2}))
    world.add_pods("y", "z", service="odd")
    world.api.silent = ("y", "z")
    world.add_pods("a")
    async with running(world.restarted(interval_s=0.02), stuck=[("ns", "odd")]):
        world.loads["a"] = {"running": 10, "waiting": 5}
        world.now += 5
        await until(lambda: world.status.get("desiredReplicas") == 2)


async def test_a_write_that_met_another_is_made_again(world, monkeypatch):
    monkeypatch.setattr(actor, "RETRY_S", 0)
    world.api.refusals = [ApiError(409, "Conflict", "the object has been modified")] * 3
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 5}
    monkeypatch.setattr(actor.act, "_raise_if_same", _raise)
    await world.tick()
    assert world.status["desiredReplicas"] == 2


async def _raise(client, path, uid, error):
    raise error


async def test_a_service_that_fails_stops_no_other(world, service):
    world.store.put(KIND, service("odd", autoscaling=QUICK))
    world.add_pods("z", service="odd")
    world.loads["z"] = {"running": object()}
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 5}
    await world.tick()
    assert world.status["desiredReplicas"] == 2


async def test_a_paused_service_is_left_alone(world, service):
    world.store.put(KIND, service(autoscaling=QUICK, annotations={ANNOTATION_PAUSED: "true"}))
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 5}
    await world.tick()
    assert world.status == {}
    assert world.asked == []
    assert world.scaler.verdicts(("ns", "llm"))[0].reason == "Paused"
