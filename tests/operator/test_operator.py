"""The whole operator but the API server, which kmock's emulator plays.

The emulator creates nothing by server-side apply and gives no uid; that little is added here. What the real server
does beside it is tested in cluster/.
"""

import asyncio
import uuid

import aiohttp
import kmock
import kubernetes.client
import pytest

from pagetide_operator import act, reconcile
from pagetide_operator.cluster.client import ApiError
from pagetide_operator.discovery import OperatorError
from pagetide_operator.running import process
from pagetide_operator.running.process import Operator, Options
from pagetide_spec.errors import SettingError
from pagetide_spec.names import ANNOTATION_WAKE, API_VERSION, KIND, PLURAL

VERBS = {"get", "list", "watch", "create", "patch", "update", "delete"}
RESOURCES = f"{API_VERSION}/{PLURAL}"


class Server(kmock.KubernetesEmulator):
    """The emulator, with uids, and objects that come to be by server-side apply."""

    async def _handle(self, request):
        if request.resource is not None and request.action == kmock.action.UPDATE and request.subresource is None:
            await self._make(request)
        return await super()._handle(request)

    async def _make(self, request):
        key = (request.resource, request.namespace, request.name)
        if key not in self.objects or self.objects[key].deleted:
            self.objects[key] = {**request.data, "metadata": {**request.data["metadata"], "uid": str(uuid.uuid4())}}


@pytest.fixture
def kmock_options():
    return {"cls": Server}


@pytest.fixture
def server(kmock):
    kmock.resources.load_bundled()
    kmock.resources[RESOURCES] = {"kind": KIND, "namespaced": True, "verbs": VERBS, "subresources": {"status"}}
    return kmock


@pytest.fixture
async def run(server):
    """Start an operator; it ends with the test."""
    running = []

    async def start(**options):
        configuration = kubernetes.client.Configuration()
        configuration.host = str(server.url).rstrip("/")
        operator = Operator(configuration, Options("pagetide/server:1", namespaces=("ns",), **options))
        running.append((operator, asyncio.create_task(operator.run())))
        return running[-1][1]

    yield start
    for operator, _ in running:
        operator.stop.set()
    await asyncio.gather(*(task for _, task in running), return_exceptions=True)


async def until(check, seconds=10):
    for _ in range(int(seconds / 0.05)):
        if check():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def found(server, resource, name="llm"):
    try:
        return server.objects[resource, "ns", name].raw
    except KeyError:
        return None


def reason(server, name="llm"):
    status = server.objects[RESOURCES, "ns", name].raw.get("status") or {}
    return next((c["reason"] for c in status.get("conditions", []) if c["type"] == "Ready"), None)


async def test_a_service_gets_children_and_a_status(server, run, service):
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: reason(server) == "Starting")
    assert found(server, "apps/v1/deployments")["spec"]["replicas"] == 1
    assert found(server, "v1/services")["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert found(server, "policy/v1/poddisruptionbudgets") is not None


async def test_it_runs_as_a_user_without_a_name(server, run, service, monkeypatch):
    """As images do: a number, and no line about it in /etc/passwd."""

    def getuser():
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", getuser)
    server.objects[RESOURCES, "ns", "llm"] = service()
    task = await run()
    await until(lambda: reason(server) == "Starting")
    await asyncio.sleep(0.5)  # time enough for kopf to end
    assert not task.done()


async def test_a_fault_of_ours_is_told_in_the_status_and_stops_no_other(server, run, service, monkeypatch):
    plain = reconcile.plan_for

    def plan_for(found, *arguments):
        if found.name == "odd":
            raise KeyError("out of luck")
        return plain(found, *arguments)

    monkeypatch.setattr(reconcile, "plan_for", plan_for)
    server.objects[RESOURCES, "ns", "odd"] = service("odd")
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: reason(server, "odd") == "InternalError")
    await until(lambda: reason(server) == "Starting")


async def test_what_cannot_be_told_as_an_event_is_in_the_status(server, run, service, monkeypatch):
    async def refuse(*arguments):
        raise ApiError(403, "Forbidden", "no Events")

    monkeypatch.setattr(act, "post_event", refuse)
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: reason(server) == "Starting")


async def test_an_invalid_service_stops_no_other(server, run, service):
    server.objects[RESOURCES, "ns", "bad"] = service("bad", engine={"blockSize": 7})
    server.objects[RESOURCES, "ns", "a" * 70] = service("a" * 70)
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: reason(server) == "Starting")
    await until(lambda: reason(server, "bad") == "InvalidSpec")
    await until(lambda: reason(server, "a" * 70) == "InvalidName")


async def test_what_a_child_says_reaches_the_status(server, run, service):
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: found(server, "apps/v1/deployments"))
    await until(lambda: reason(server) == "Starting")
    status = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    await patch(server, "/apis/apps/v1/namespaces/ns/deployments/llm/status", {"status": status})
    await until(lambda: reason(server) == "Ready")


async def patch(server, path, body):
    """A write of somebody else."""
    headers = {"Content-Type": "application/merge-patch+json"}
    async with (
        aiohttp.ClientSession(str(server.url)) as session,
        session.patch(path, json=body, headers=headers) as reply,
    ):
        assert reply.status == 200, await reply.text()


async def test_neither_kopf_nor_anybody_writes_at_rest(server, run, service):
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run(resync_seconds=0.2)
    await until(lambda: reason(server) == "Starting")

    def writes():
        return len(server["patch"]) + len(server["post"]) + len(server["delete"])

    before = -1
    async with asyncio.timeout(10):
        while before != writes():  # the last of the writes that make it
            before = writes()
            await asyncio.sleep(0.5)
    await asyncio.sleep(1)  # five relists
    assert writes() == before


async def test_it_stops_when_told_though_the_server_does_not_answer():
    configuration = kubernetes.client.Configuration()
    configuration.host = "http://127.0.0.1:1"
    operator = Operator(configuration, Options("i"))
    running = asyncio.create_task(operator.run())
    await asyncio.sleep(0.1)
    operator.stop.set()
    await asyncio.wait_for(running, 1)


async def test_no_part_of_a_leader_goes_on_when_one_has_failed(monkeypatch):
    operator = Operator(kubernetes.client.Configuration(), Options("pagetide/server:1", workers=3))
    operator._synced.set()
    at_work = set()

    async def worker(_):
        me = asyncio.current_task()
        at_work.add(me)
        try:
            await asyncio.Event().wait()
        finally:
            at_work.remove(me)

    async def scale():
        async with asyncio.timeout(10):
            while len(at_work) < 3:  # noqa: ASYNC110 - the workers begin in turns of the loop
                await asyncio.sleep(0)
        assert len(at_work) == 3
        raise LookupError("a fault of ours")

    monkeypatch.setattr(operator, "_worker", worker)
    monkeypatch.setattr(operator._scaler, "run", scale)
    with pytest.raises(LookupError):
        await operator._work(None)
    assert not at_work


async def test_a_held_request_is_seen_though_every_worker_is_busy(server, run, service, monkeypatch):
    wanted = {"minReplicas": 0, "maxReplicas": 1}
    server.objects[RESOURCES, "ns", "llm"] = service(autoscaling=wanted, status={"desiredReplicas": 0})

    async def hang(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(process.Reconciler, "reconcile", hang)
    await run(workers=1)
    await asyncio.sleep(0.5)
    asked = {"metadata": {"annotations": {ANNOTATION_WAKE: "2031-01-01T00:00:00Z"}}}
    await patch(server, f"/apis/{API_VERSION}/namespaces/ns/{PLURAL}/llm", asked)
    await until(lambda: found(server, RESOURCES)["status"]["desiredReplicas"] == 1, seconds=3)


async def test_a_list_that_fails_for_a_while_is_asked_for_again(server, run, service, monkeypatch):
    codes, plain = [500, 410], act.listed

    async def listed(*arguments):
        if codes:
            raise ApiError(codes.pop(), "x", "out of luck")
        return await plain(*arguments)

    monkeypatch.setattr(act, "listed", listed)
    server.objects[RESOURCES, "ns", "llm"] = service()
    await run()
    await until(lambda: reason(server) == "Starting")


async def test_what_happened_before_the_watches_began_is_seen_soon(server, run, service, monkeypatch):
    asked, plain = [], act.listed

    async def see_nothing(self):
        await asyncio.Event().wait()

    async def listed(client, kind, *more):
        made = await plain(client, kind, *more)
        asked.append(kind.name)
        return made

    monkeypatch.setattr(Operator, "_watch", see_nothing)
    monkeypatch.setattr(act, "listed", listed)
    monkeypatch.setattr(process, "SECOND_LIST_SECONDS", 0.5)
    await run()
    await until(lambda: KIND in asked)
    server.objects[RESOURCES, "ns", "llm"] = service()
    await until(lambda: reason(server) == "Starting", 5)


async def test_a_number_that_is_no_port_is_refused(run):
    with pytest.raises(SettingError, match=r"^--metrics-port: 99999: must be"):
        await (await run(metrics_port=99999))


async def test_without_the_crd_it_says_what_to_do(server, run):
    del server.resources[RESOURCES]
    task = await run()
    with pytest.raises(OperatorError, match="pagetide crd"):
        await asyncio.wait_for(task, 10)
