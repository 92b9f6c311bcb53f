"""The autoscaler in a cluster: what it writes, and when. The API server and the pods' metrics are fakes."""

import asyncio
import contextlib
import dataclasses
import itertools

import pytest
from aiohttp import web

from pagetide_operator.act import write_status
from pagetide_operator.autoscaling import scrape
from pagetide_operator.autoscaling.samples import Sample
from pagetide_operator.autoscaling.scrape import Scraper
from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.store import Store
from pagetide_operator.cluster.times import timestamp
from pagetide_operator.decide import Seen, status_changes, understood
from pagetide_operator.scaler import actor
from pagetide_operator.scaler.actor import Scaler
from pagetide_operator.telemetry import Telemetry
from pagetide_spec.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DRAINING,
    ANNOTATION_PAUSED,
    ANNOTATION_WAKE,
    KIND,
    LABEL_SERVICE,
)

BEGIN = 1_800_000_000.0
QUICK = {"maxReplicas": 4, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}


class Api:
    """Takes merge patches of pods and of statuses, and Events. `refusals`: errors for the next writes of a status;
    `silent`, `broken`: names whose writes are never answered, or always fail."""

    def __init__(self, store):
        self.store, self.events, self.refusals, self.silent = store, [], [], ()
        self.minor, self.hiccups, self.broken = "36+", [], ()
        self._versions = itertools.count(100)

    async def request(self, method, path, query=None, body=None, content_type=""):
        if path == "/version":
            if self.hiccups:
                raise self.hiccups.pop()
            return {"major": "1", "minor": self.minor}
        if path.endswith("/events"):
            self.events.append(body["message"])
            return {}
        kind = "Pod" if "/pods/" in path else KIND
        if kind == KIND and self.refusals:
            raise self.refusals.pop(0)
        name = path.removesuffix("/status").rpartition("/")[2]
        if name in self.broken:
            raise ApiError(500, "InternalError", "failed calling webhook")
        if name in self.silent:
            await asyncio.Event().wait()
        before = self.store._objects[kind]["ns", name]
        assert body["metadata"]["uid"] == before["metadata"]["uid"]
        after = merged(before, body)
        after["metadata"] = {**after["metadata"], "resourceVersion": str(next(self._versions))}
        return after


def merged(base, patch):
    out = dict(base)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(base.get(key) or {}, value) if isinstance(value, dict) else value
    return out


class World:
    """One operator's autoscaler over fake pods; a `tick` is five seconds."""

    def __init__(self, monkeypatch):
        self.now, self.store, self.changed = BEGIN, Store(), []
        self.api, self.telemetry = Api(self.store), Telemetry()
        self.loads, self.asked = {}, []
        self.scaler = self.restarted()
        world = self

        async def scraped(self, addresses):
            world.asked = list(addresses)
            return {uid: world.sample(uid) for uid in addresses}

        monkeypatch.setattr(Scraper, "scrape", scraped)

    def restarted(self, interval_s=5.0):
        self.scaler = Scaler(self.api, self.store, self.changed.append, self.telemetry, lambda: self.now, interval_s)
        return self.scaler

    def sample(self, uid):
        if uid in self.loads and self.loads[uid] is None:
            return "connection refused"
        return dataclasses.replace(Sample(self.now, max_seqs=10, kv_capacity=1000), **self.loads.get(uid, {}))

    def add_pods(self, *names, ready=True, service="llm"):
        for name in names:
            condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp(self.now - 60)}
            metadata = {"name": name, "namespace": "ns", "uid": name, "labels": {LABEL_SERVICE: service}}
            status = {"podIP": "10.0.0.1", "conditions": [condition], "phase": "Running"}
            self.store.put("Pod", {"metadata": metadata, "status": status})

    async def tick(self, seconds=5, count=1):
        for _ in range(count):
            self.now += seconds
            for name in self.store.resources():
                await self.scaler._guarded(name)

    @property
    def status(self):
        return self.store.resource(("ns", "llm"))["status"]

    def annotations(self, pod):
        return self.store._objects["Pod"]["ns", pod]["metadata"].get("annotations") or {}


@pytest.fixture
def world(monkeypatch, service):
    made = World(monkeypatch)
    made.store.put(KIND, service(autoscaling=QUICK, drainSeconds=60))
    return made


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
        "1 -> 3 replicas: 10 running and 11 waiting, 10 places a replica (asked: batch 3, queue 0, memory 0, prompt 0)"
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


async def test_a_dead_pod_keeps_the_others_from_shrinking_not_from_growing(world):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    world.loads = {"a": None, "b": {"running": 1}}
    await world.tick(count=4)
    assert world.status["desiredReplicas"] == 2
    world.loads["b"] = {"running": 10, "waiting": 14}
    await world.tick()
    assert world.status["desiredReplicas"] == 3


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


@contextlib.asynccontextmanager
async def running(scaler):
    """The scaler at work, after its first round."""
    task = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.05)
    yield
    task.cancel()


async def until(holds):
    async with asyncio.timeout(2):
        while not holds():  # noqa: ASYNC110 - nothing tells of what is only looked at here
            await asyncio.sleep(0.01)


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


async def test_a_service_whose_writes_hang_delays_no_other(world, service):
    world.store.put(KIND, service("odd", autoscaling=QUICK, status={"desiredReplicas": 2}))
    world.add_pods("y", "z", service="odd")
    world.api.silent = ("y", "z")
    world.add_pods("a")
    async with running(world.restarted(interval_s=0.02)):
        world.loads["a"] = {"running": 10, "waiting": 5}
        world.now += 5
        await until(lambda: world.status.get("desiredReplicas") == 2)


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


async def test_a_service_that_is_paused_in_the_midst_of_draining_keeps_no_leaver(world, service):
    world.add_pods("a", "b")
    world.store.resource(("ns", "llm"))["status"]["desiredReplicas"] = 2
    await world.tick()
    assert ANNOTATION_DRAINING in world.annotations("a")
    world.store.put(KIND, service(autoscaling=QUICK, annotations={ANNOTATION_PAUSED: "true"}))
    await world.tick()
    assert ANNOTATION_DRAINING not in world.annotations("a"), "nobody removes it, and it would get no requests"


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


async def test_slow_and_dead_pods_cost_the_others_nothing(monkeypatch, unused_tcp_port):
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.3)
    hang = asyncio.Event()

    async def metrics(request):
        kind = request.host.partition(":")[0]
        if kind == "localhost":
            await hang.wait()
        text = 'pagetide_max_num_seqs{model_name="m"} 4\npagetide_kv_capacity_tokens{model_name="m"} 64\n'
        return web.Response(text=text if kind == "127.0.0.1" else "hello")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    scraper = Scraper(lambda: 7.0)
    async with asyncio.timeout(2):
        found = await scraper.scrape({
            "good": f"http://127.0.0.1:{port}", "slow": f"http://localhost:{port}",
            "odd": f"http://127.0.0.2:{port}", "dead": f"http://127.0.0.1:{unused_tcp_port}",
        })  # fmt: skip
    await scraper.close()
    hang.set()
    await runner.cleanup()
    assert (found["good"].at, found["good"].max_seqs) == (7.0, 4)
    assert found["slow"] == "no answer within 0.3 s"
    assert "max_num_seqs" in found["odd"]
    assert isinstance(found["dead"], str)
