"""The autoscaler in a cluster: to zero, and back for a request that is held."""

from pagetide_operator.act import write_status
from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.times import timestamp
from pagetide_operator.scaler import actor
from pagetide_spec.names import ANNOTATION_DRAINING, ANNOTATION_WAKE, KIND

from .world import BEGIN, merged, running, until


async def test_a_held_request_wakes_a_service_at_once(world, service):
    scaling = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 60}
    slept = {"time": timestamp(BEGIN - 5), "from": 1, "to": 0}
    status = {"desiredReplicas": 0, "autoscaling": {"decisions": [slept]}}
    world.store.put(KIND, service(status=status, autoscaling=scaling))
    await world.tick()
    assert world.status["desiredReplicas"] == 0
    asked = service(status=status, autoscaling=scaling, annotations={ANNOTATION_WAKE: timestamp(world.now)})
    asked["metadata"]["resourceVersion"] = "50"
    world.store.put(KIND, asked)
    async with running(world.scaler):
        world.scaler.noticed(("ns", "llm"))
        await until(lambda: world.status["desiredReplicas"] == 1)
    assert world.status["autoscaling"]["decisions"][-1]["winner"] == "wake"


async def test_a_wake_does_not_wait_for_one_that_is_slow(world, service):
    scaling = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 60}
    wake = {ANNOTATION_WAKE: timestamp(BEGIN)}
    async with running(world.scaler):
        world.api.silent = ("slow",)
        for name in ("slow", "llm"):
            world.store.put(KIND, service(name, status={"desiredReplicas": 0}, autoscaling=scaling, annotations=wake))
            world.scaler.noticed(("ns", name))
        await until(lambda: world.status["desiredReplicas"] == 1)


async def test_a_request_that_is_held_keeps_the_last_replica_at_once(world, service):
    scaling = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 60}
    world.store.put(KIND, service(status={"desiredReplicas": 1}, autoscaling=scaling))
    world.add_pods("a")
    world.loads = {"a": {"prefills": 1}}
    await world.tick(count=13)
    assert ANNOTATION_DRAINING in world.annotations("a")
    async with running(world.scaler):
        asked = {"metadata": {"annotations": {ANNOTATION_WAKE: timestamp(world.now)}, "resourceVersion": "9"}}
        world.store.put(KIND, merged(world.store.resource(("ns", "llm")), asked))
        world.scaler.noticed(("ns", "llm"))
        await until(lambda: ANNOTATION_DRAINING not in world.annotations("a"))


async def test_a_request_that_is_held_while_the_last_replica_goes_keeps_it(world, service, monkeypatch):
    scaling = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 60}
    world.store.put(KIND, service(status={"desiredReplicas": 1}, autoscaling=scaling))
    world.add_pods("a")
    await world.tick(count=13)
    assert ANNOTATION_DRAINING in world.annotations("a")
    tries = []

    async def crossed(client, resource, change):
        """The gateway's write comes first."""
        tries.append(change)
        if len(tries) > 1:
            return await write_status(client, resource, change)
        asked = {"metadata": {"annotations": {ANNOTATION_WAKE: timestamp(world.now)}, "resourceVersion": "9"}}
        world.store.put(KIND, merged(resource, asked))
        raise ApiError(409, "Conflict", "the object has been modified")

    monkeypatch.setattr(actor, "RETRY_S", 0)
    monkeypatch.setattr(actor.act, "write_status", crossed)
    await world.tick()
    assert world.status["desiredReplicas"] == 1
    await world.tick()
    assert ANNOTATION_DRAINING not in world.annotations("a")


async def test_a_service_goes_to_zero_and_a_restart_of_the_operator_does_not_forget_its_rest(world, service):
    scaling = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 60}
    world.store.put(KIND, service(status={"desiredReplicas": 1}, autoscaling=scaling))
    world.add_pods("a")
    await world.tick(count=12)
    assert ANNOTATION_DRAINING not in world.annotations("a")
    await world.tick(count=3)
    assert world.status["desiredReplicas"] == 0
    world.restarted()
    world.store.remove("Pod", world.store._objects["Pod"]["ns", "a"])
    await world.tick(count=3)
    assert world.status["desiredReplicas"] == 0
    assert world.scaler.verdicts(("ns", "llm"))[0].reason == "Asleep"
