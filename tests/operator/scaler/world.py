"""An API server and pods' metrics as fakes, and the autoscaler of one operator over them."""

import asyncio
import contextlib
import dataclasses
import itertools

from pagetide_operator.autoscaling.samples import Sample
from pagetide_operator.autoscaling.scrape import Scraper
from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.store import Store
from pagetide_operator.cluster.times import timestamp
from pagetide_operator.scaler.actor import Scaler
from pagetide_operator.telemetry import Telemetry
from pagetide_spec.names import KIND, LABEL_SERVICE

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


@contextlib.asynccontextmanager
async def running(scaler, stuck=()):
    """The scaler at work, after its first round; `stuck`: those whose look does not end."""
    look, seen = scaler._rounds._look, set()

    async def looked(name):
        await look(name)
        seen.add(name)

    scaler._rounds._look = looked
    task = asyncio.create_task(scaler.run())
    await until(lambda: seen >= set(scaler._store.resources()) - set(stuck))
    yield
    task.cancel()


async def until(holds):
    async with asyncio.timeout(2):
        while not holds():  # noqa: ASYNC110 - nothing tells of what is only looked at here
            await asyncio.sleep(0.01)
