"""Says at the end of a run what was left out for want of a control plane, of its images, or of a tool."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from pagetide_spec.names import API_VERSION, KIND

VARIABLE = "PAGETIDE_TEST_KUBECONFIG"
BINARIES = "KUBEBUILDER_ASSETS"
_HOW = (
    f"set {VARIABLE} to the kubeconfig of any cluster (kind, k3s, minikube); or {BINARIES} to a folder with etcd and "
    "kube-apiserver, for what needs no nodes"
)
_left_out = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[_left_out] = []


@pytest.hookimpl(trylast=True)  # what was deselected is not missed
def pytest_collection_modifyitems(config, items):
    if os.environ.get(VARIABLE) or os.environ.get(BINARIES):
        return
    for item in items:
        if item.get_closest_marker("cluster"):
            config.stash[_left_out].append(item.nodeid)
            item.add_marker(pytest.mark.skip(reason=f"needs a Kubernetes control plane: {VARIABLE} or {BINARIES}"))


# What a test says in its reason for being skipped, and how to have it run.
_MISSING = {
    "needs nodes": f"nodes that run pods: set {VARIABLE} to a whole cluster",
    "needs images": "Pagetide's images in the cluster: load them there, set PAGETIDE_TEST_IMAGES",
    "needs helm": "helm: put it on PATH, or name it in HELM",
    "needs kubectl": "kubectl: put it on PATH, or name it in KUBECTL",
    "needs Kubernetes 1.25": f"an API server that knows CEL rules (1.25 or newer): set {VARIABLE} to its cluster",
}


def pytest_terminal_summary(terminalreporter, config):
    reasons = [str(r.longrepr) for r in terminalreporter.stats.get("skipped", [])]
    lines = []
    if count := len(config.stash[_left_out]):
        lines.append(f"{count} tests need a Kubernetes control plane: {_HOW}.")
    for words, how in _MISSING.items():
        if count := sum(words in reason for reason in reasons):
            lines.append(f"{count} tests need {how}.")
    if lines:
        terminalreporter.section("left out")
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture
def service():
    """Make an InferenceService as the API server would hand it out: `service(name=..., status=..., **spec)`."""

    def make(name="llm", status=None, annotations=None, **spec):
        metadata = {"name": name, "namespace": "ns", "uid": "uid-1", "generation": 2, "resourceVersion": "7"}
        out = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {**metadata, "annotations": annotations or {}}}
        return out | {"spec": {"model": {"uri": "hf://org/name"}} | spec, "status": status or {}}

    return make


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory):
    """Path of a kubeconfig: the one that is named, or that of an API server started from KUBEBUILDER_ASSETS."""
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
        return
    with BareControlPlane(Path(os.environ[BINARIES]), tmp_path_factory.mktemp("control-plane")) as plane:
        yield str(plane.kubeconfig)


@pytest.fixture
def helm(tool):
    """Run helm with these arguments; its output."""
    return tool("helm")


@pytest.fixture
def kubectl(tool):
    """Run kubectl with these arguments; its output."""
    return tool("kubectl")


@pytest.fixture
def tool(cluster, kubeconfig):
    """A command that talks to the test's cluster, run in a thread: the test's own connections go on meanwhile."""

    def make(name):
        path = os.environ.get(name.upper()) or shutil.which(name)
        if path is None:
            pytest.skip(f"needs {name}: put it on PATH, or name it in {name.upper()}")

        async def run(*arguments, stdin=None, check=True):
            done = await asyncio.to_thread(
                subprocess.run,
                [path, *arguments],
                input=stdin,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0 or not check, done.stderr
            return done.stdout + done.stderr

        return run

    return make


@pytest.fixture
def images(nodes):
    """For tests whose pods run Pagetide's own images."""
    if not os.environ.get("PAGETIDE_TEST_IMAGES"):
        pytest.skip(
            "needs images: load pagetide/operator and pagetide/server into the cluster, set PAGETIDE_TEST_IMAGES"
        )


class BareControlPlane:
    """etcd and kube-apiserver, and nothing else: no controllers, no nodes."""

    def __init__(self, binaries, work):
        self._binaries, self._work, self._children = binaries, work, []
        self.kubeconfig = work / "kubeconfig"
        self._etcd, self._peer, self._api = _free_ports(3)

    def __enter__(self):
        urls = [f"http://127.0.0.1:{port}" for port in (self._etcd, self._peer)]
        self._start("etcd", f"--data-dir={self._work}/etcd", f"--listen-client-urls={urls[0]}", "--unsafe-no-fsync",
                    f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}")  # fmt: skip
        key = self._work / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self._work / "tokens.csv").write_text("admin-token,admin,admin,system:masters\n")
        self._start("kube-apiserver", f"--etcd-servers={urls[0]}", f"--secure-port={self._api}",
                    "--bind-address=127.0.0.1", f"--cert-dir={self._work}", "--service-cluster-ip-range=10.0.0.0/24",
                    f"--token-auth-file={self._work}/tokens.csv", "--authorization-mode=RBAC",
                    "--disable-admission-plugins=ServiceAccount", "--service-account-issuer=https://localhost",
                    f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}")  # fmt: skip
        cluster = {"server": f"https://127.0.0.1:{self._api}", "certificate-authority": f"{self._work}/apiserver.crt"}
        parts = {"clusters": [{"name": "c", "cluster": cluster}], "current-context": "x"}
        parts |= {"users": [{"name": "u", "user": {"token": "admin-token"}}]}
        parts |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
        self.kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **parts}))
        self._wait()
        return self

    def __exit__(self, *_):
        for child in reversed(self._children):
            child.kill()
            child.wait()

    def _start(self, name, *flags):
        found = self._binaries / name
        command = str(found) if found.exists() else shutil.which(name) or name
        with open(self._work / f"{name}.log", "wb") as log:
            self._children.append(subprocess.Popen([command, *flags], stdout=log, stderr=log))

    def _wait(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and all(c.poll() is None for c in self._children):
            try:
                context = ssl.create_default_context(cafile=self._work / "apiserver.crt")
                request = urllib.request.Request(
                    f"https://127.0.0.1:{self._api}/readyz", headers={"Authorization": "Bearer admin-token"}
                )
                with urllib.request.urlopen(request, context=context, timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"the control plane did not start; its logs are in {self._work}")


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return ports
