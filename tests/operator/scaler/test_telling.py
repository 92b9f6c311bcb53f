"""The autoscaler in a cluster: where its decisions and its troubles can be read."""

from pagetide_operator.cluster.times import timestamp
from pagetide_operator.decide import Seen, status_changes, understood
from pagetide_spec.names import KIND


async def test_a_change_is_in_status_event_metric_and_log(world, caplog):
    caplog.set_level("INFO")
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 11}
    await world.tick()
    assert world.status["desiredReplicas"] == 3
    (told,) = world.status["autoscaling"]["decisions"]
    assert (told["from"], told["to"], told["winner"], told["limiter"]) == (1, 3, "batch", "none")
    assert told["inputs"]["asks"] == {"batch": 3, "queue": 0, "memory": 0, "prompt": 0}
    assert (told["inputs"]["running"], told["inputs"]["waiting"], told["inputs"]["placesPerReplica"]) == (10, 11, 10)
    assert told["time"] == world.status["autoscaling"]["lastScaleTime"] == timestamp(world.now)
    text = (
        "1 -> 3 replicas: 10 running and 11 waiting, 10 batch slots per replica "
        "(asked: batch 3, queue 0, memory 0, prompt 0)"
    )
    assert world.api.events == [text]
    assert f"ns/llm: {text}" in caplog.text
    labels = {"namespace": "ns", "service": "llm", "direction": "up", "winner": "batch"}
    assert world.telemetry.registry.get_sample_value("pagetide_operator_scale_changes_total", labels) == 1
    assert ("ns", "llm") in world.changed


async def test_the_last_five_decisions_are_kept(world):
    world.add_pods("a")
    for count in (11, 19, 27):
        world.loads["a"] = {"running": 10, "waiting": count - 10}
        await world.tick()
    await world.tick(count=3)
    assert [d["to"] for d in world.status["autoscaling"]["decisions"]] == [2, 3, 4]
    before = world.status
    world.scaler = world.restarted()
    await world.tick()
    assert world.status == before, "without news nothing is written"


async def test_no_metrics_at_all_change_nothing_and_it_is_told(world):
    world.add_pods("a")
    world.loads = {"a": None}
    await world.tick(count=3)
    assert "desiredReplicas" not in world.status
    active, limited = world.scaler.verdicts(("ns", "llm"))
    assert (active.holds, active.reason) == (False, "NoMetrics")
    assert (limited.holds, limited.reason) == (False, "DesiredWithinRange")


async def test_conditions_of_the_autoscaler_reach_the_status(world):
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 90}
    await world.tick()
    resource = world.store.resource(("ns", "llm"))
    seen = Seen(resource, [], scaling=world.scaler.verdicts(("ns", "llm")))
    told = status_changes(seen, understood(resource), None, world.now)["conditions"]
    found = {c["type"]: (c["status"], c["reason"]) for c in told}
    assert found["ScalingActive"] == ("True", "Measured")
    assert found["ScalingLimited"] == ("True", "MaxReplicas")


async def test_what_a_gone_service_exported_goes_with_it(world):
    world.add_pods("a")
    await world.tick()
    assert b'service="llm"' in scraped(world)
    world.store.remove(KIND, world.store.resource(("ns", "llm")))
    world.scaler._remaining()
    assert b'service="llm"' not in scraped(world)


async def test_a_service_that_goes_while_it_is_scaled_exports_nothing_any_more(world, monkeypatch):
    world.add_pods("a")
    world.loads["a"] = {"running": 10, "waiting": 5}
    announce = world.scaler._announce

    async def announced(*told):
        world.store.remove(KIND, world.store.resource(("ns", "llm")))
        world.scaler._remaining()
        await announce(*told)

    monkeypatch.setattr(world.scaler, "_announce", announced)
    await world.tick()
    assert b'service="llm"' not in scraped(world)


def scraped(world):
    from prometheus_client import generate_latest

    return generate_latest(world.telemetry.registry)
