"""A real API server: a namespace for each test, an operator process for whoever asks, and small helpers."""

import asyncio
import copy
import itertools
import os
import pathlib
import subprocess
import sys
import time

import kubernetes.client
import kubernetes.config
import pytest
import yaml

from pagetide_operator.cluster.client import ApiError, Client, authorization
from pagetide_operator.cluster.kinds import BY_NAME, collection_path
from pagetide_spec.crd import CRD_NAME, custom_resource_definition
from pagetide_spec.names import API_VERSION, KIND, PLURAL

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
_numbers = itertools.count()


def configuration_of(kubeconfig):
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(kubeconfig, client_configuration=configuration)
    return configuration


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace

    async def get(self, kind, name, namespace=None):
        return await self.client.request("GET", self.path(kind, name, namespace))

    async def find(self, kind, name):
        """The object, or None."""
        try:
            return await self.get(kind, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind):
        return (await self.client.request("GET", self.path(kind)))["items"]

    async def create(self, manifest):
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        return await self.client.request("POST", self.path(manifest["kind"]), body={**manifest, "metadata": metadata})

    async def patch(self, kind, name, patch, subresource=""):
        return await self.client.request(
            "PATCH", self.path(kind, name) + subresource, body=patch, content_type="application/merge-patch+json"
        )

    async def delete(self, kind, name):
        return await self.client.request("DELETE", self.path(kind, name), body={"propagationPolicy": "Background"})

    def path(self, kind, name="", namespace=None):
        version, plural = _PLACES.get(kind) or (BY_NAME[kind].versions[-1], BY_NAME[kind].plural)
        path = collection_path(version, plural, namespace or self.namespace)
        return f"{path}/{name}" if name else path

    async def until(self, check, seconds=20, detail=None, pause=0.1):
        return await until(check, seconds, detail, pause)

    def manifest(self, name, env=None, **spec):
        return manifest(name, env, **spec)

    async def service(self, name):
        return await self.get(KIND, name)

    async def condition(self, name, kind="Ready"):
        """{status, reason, message} of a condition; an empty one where it has none yet."""
        status = (await self.service(name)).get("status", {})
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {"status": None, "reason": None})

    async def is_ready(self, name):
        """Whether the service is Ready, for its present generation."""
        found = await self.service(name)
        ready = await self.condition(name)
        return ready["status"] == "True" and ready["observedGeneration"] == found["metadata"]["generation"]

    async def ready(self, name, seconds=40):
        await until(lambda: self.is_ready(name), seconds, lambda: self.condition(name))


_PLACES = {
    KIND: (API_VERSION, PLURAL),
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Secret": ("v1", "secrets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "ResourceQuota": ("v1", "resourcequotas"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
}


async def until(check, seconds=20, detail=None, pause=0.1):
    """The first true result of an async check, made again after each pause."""
    end = time.monotonic() + seconds
    while not (result := await check()):
        if time.monotonic() > end:
            more = f": {await detail()}" if detail else ""
            raise AssertionError(f"not within {seconds} s{more}")
        await asyncio.sleep(pause)
    return result


async def install_crd(client):
    """The CRD as this code has it, whatever was there before."""
    path = collection_path("apiextensions.k8s.io/v1", "customresourcedefinitions", None) + f"/{CRD_NAME}"
    query = {"fieldManager": "pagetide-tests", "force": "true"}
    manifest = custom_resource_definition(rules=await has_rules(client))
    await client.request("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def established():
        conditions = (await client.request("GET", path))["status"].get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await until(established)


async def has_rules(client):
    """Whether this API server checks CEL rules (since 1.25)."""
    version = await client.request("GET", "/version")
    return (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 25)


@pytest.fixture
async def cluster(kubeconfig):
    """A namespace of the test's own with the fake server in a ConfigMap."""
    client = Client(configuration_of(kubeconfig))
    namespace = f"pagetide-test-{os.getpid()}-{next(_numbers)}"
    await install_crd(client)
    await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    here = Cluster(client, namespace)
    script = (HERE / "fake_server.py").read_text()
    await here.create({"kind": "ConfigMap", "metadata": {"name": "fake"}, "data": {"fake_server.py": script}})
    yield here
    await client.request("DELETE", f"/api/v1/namespaces/{namespace}")
    await client.close()


@pytest.fixture
async def knows_rules(cluster):
    """Whether this API server checks CEL rules."""
    return await has_rules(cluster.client)


DEFINITIONS = collection_path("apiextensions.k8s.io/v1", "customresourcedefinitions", None)


class Definition:
    """Another project's CustomResourceDefinition, to be installed and removed."""

    def __init__(self, cluster, manifest):
        self._cluster, self._manifest = cluster, manifest
        self._path = f"{DEFINITIONS}/{manifest['metadata']['name']}"

    async def is_there(self):
        try:
            await self._cluster.client.request("GET", self._path)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    async def install(self):
        await self._cluster.client.request("POST", DEFINITIONS, body=self._manifest)
        await until(self._is_served)

    async def _is_served(self):
        try:
            await self._cluster.list(self._manifest["spec"]["names"]["kind"])
        except ApiError:
            return False
        return True

    async def remove(self):
        if await self.is_there():
            await self._cluster.client.request("DELETE", self._path)

        async def is_gone():
            return not await self.is_there()

        await until(is_gone)


@pytest.fixture
async def defined(cluster):
    """The definition in a file of this folder, not installed yet; a cluster that has its own keeps it."""
    made = []

    async def make(name):
        found = Definition(cluster, yaml.safe_load((HERE / name).read_text()))
        if await found.is_there():
            pytest.skip(f"this cluster has its own of {name}")
        made.append(found)
        return found

    yield make
    for definition in made:
        await definition.remove()


@pytest.fixture
async def nodes(cluster):
    """For tests whose pods must run, or that need the controllers that come with nodes."""
    if not (await cluster.client.request("GET", "/api/v1/nodes"))["items"]:
        pytest.skip("needs nodes that run pods")


TEMPLATE = {
    "containers": [{"name": "server", "command": ["python3", "/fake/fake_server.py"]}],
    "volumes": [{"name": "fake", "configMap": {"name": "fake"}}],
    "volumeMounts": [{"name": "fake", "mountPath": "/fake"}],
}


def manifest(name, env=None, **spec):
    """A service whose pods run the fake server; any cluster can run it."""
    template = copy.deepcopy(TEMPLATE)
    template["env"] = [{"name": k, "value": v} for k, v in (env or {}).items()]
    fields = {"model": {"uri": "file:///srv/model"}, "image": "python:3.12-slim", "template": template}
    fields |= {"drainSeconds": 1, "engine": {"shutdownTimeoutS": 1}, "replicas": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {**fields, **spec}}


class Process:
    """`pagetide operator` as a process."""

    def __init__(self, kubeconfig, log, *flags):
        self.log = log
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pagetide_operator.main", "--metrics-port=0", *flags]
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def stop(self):
        """End it as Kubernetes does; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=15)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=15)

    def cpu_seconds(self):
        """Processor time that it has used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def run_operator(cluster, kubeconfig, tmp_path):
    """Start operators for the test's namespace; they end with the test."""
    running = []

    def run(*flags, config=None, everywhere=False):
        log = tmp_path / f"operator-{len(running)}.log"
        scope = [] if everywhere else [f"--namespace={cluster.namespace}"]
        election = [] if any("lease" in f for f in flags) else ["--no-leader-election"]
        running.append(Process(config or kubeconfig, log, *scope, *election, *flags))
        return running[-1]

    yield run
    for process in running:
        if process.process.poll() is None:
            process.kill()
    for process in running:
        print(process.log.read_text())


@pytest.fixture
def operator(run_operator):
    """One running operator."""
    return run_operator()


@pytest.fixture
def other_kubeconfig(kubeconfig, tmp_path):
    """Write a kubeconfig for the same cluster under another identity or address; returns its path."""

    def write(name, **changes):
        path = tmp_path / name
        path.write_text(_kubeconfig_with(configuration_of(kubeconfig), **changes))
        return path

    return write


def _kubeconfig_with(configuration, token=None, server=None):
    cluster = {"server": server or configuration.host, "certificate-authority": configuration.ssl_ca_cert}
    token = token or (authorization(configuration) or "").removeprefix("Bearer ")
    user = {"token": token}
    if not token:
        user = {"client-certificate": configuration.cert_file, "client-key": configuration.key_file}
    parts = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}]}
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": contexts, **parts})
