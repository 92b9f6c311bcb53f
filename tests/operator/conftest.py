"""Says at the end of a run what was left out for want of a control plane or of helm."""

import os

import pytest

from pagetide_spec.names import API_VERSION, KIND

VARIABLE = "PAGETIDE_TEST_KUBECONFIG"
_HOW = (
    f"set {VARIABLE} to the kubeconfig of any cluster (kind, k3s, minikube), or, beside the lab and as root: "
    'eval "$(.ci/lab up /tmp/pagetide-lab)" before and `.ci/lab down /tmp/pagetide-lab` after'
)
_left_out = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[_left_out] = []


@pytest.hookimpl(trylast=True)  # what was deselected is not missed
def pytest_collection_modifyitems(config, items):
    if os.environ.get(VARIABLE):
        return
    for item in items:
        if item.get_closest_marker("cluster"):
            config.stash[_left_out].append(item.nodeid)
            item.add_marker(pytest.mark.skip(reason=f"needs a Kubernetes control plane: {VARIABLE}"))


def pytest_terminal_summary(terminalreporter, config):
    skipped = [str(r.longrepr) for r in terminalreporter.stats.get("skipped", [])]
    without_helm = sum("needs helm" in reason for reason in skipped)
    count = len(config.stash[_left_out])
    if count or without_helm:
        terminalreporter.section("left out")
    if count:
        terminalreporter.line(f"{count} tests need a Kubernetes control plane: {_HOW}.")
    if without_helm:
        terminalreporter.line(f"{without_helm} tests need helm: put it on PATH, or name it in HELM.")


@pytest.fixture
def service():
    """Make an InferenceService as the API server would hand it out: `service(name=..., status=..., **spec)`."""

    def make(name="llm", status=None, annotations=None, **spec):
        metadata = {"name": name, "namespace": "ns", "uid": "uid-1", "generation": 2, "resourceVersion": "7"}
        out = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {**metadata, "annotations": annotations or {}}}
        return out | {"spec": {"model": {"uri": "hf://org/name"}} | spec, "status": status or {}}

    return make
