"""A real API server: a namespace for each test, an operator process for whoever asks, and small helpers."""

import itertools
import os
import pathlib
import subprocess
import sys

import kubernetes.client
import kubernetes.config
import pytest
import yaml

from pagetide_operator.cluster.client import ApiError, Client, authorization
from pagetide_operator.cluster.kinds import collection_path
from pagetide_spec.crd import CRD_NAME, custom_resource_definition

from .namespace import Cluster, until

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
_numbers = itertools.count()


def configuration_of(kubeconfig):
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(kubeconfig, client_configuration=configuration)
    return configuration


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
