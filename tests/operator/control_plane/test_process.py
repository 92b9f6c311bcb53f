"""The operator as a process: its rights, and two of them at once."""

import asyncio
import signal
import time

import pytest
import yaml

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.kinds import collection_path
from pagetide_spec.names import KIND

pytestmark = pytest.mark.cluster

_PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}
SYSTEM = "pagetide-system"


async def install(cluster, path):
    """Server-side apply of all documents of a manifest."""
    for document in yaml.safe_load_all(path.read_text()):
        metadata = document["metadata"]
        place = collection_path(document["apiVersion"], _PLURALS[document["kind"]], metadata.get("namespace"))
        query = {"fieldManager": "pagetide-tests", "force": "true"}
        await cluster.client.request(
            "PATCH", f"{place}/{metadata['name']}", query, document, "application/apply-patch+yaml"
        )


async def bind_in_namespace(cluster):
    """Give the namespace's default account the operator's role there and nowhere else."""
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "apiVersion": f"{group['apiGroup']}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator"},
        "roleRef": {**group, "kind": "ClusterRole", "name": "pagetide-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}],
    }
    path = collection_path(binding["apiVersion"], "rolebindings", cluster.namespace)
    await cluster.client.request("POST", path, body=binding)
    await cluster.until(lambda: cluster.find("ServiceAccount", "default"))


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "in one namespace"])
async def test_it_needs_no_more_than_the_shipped_roles(
    cluster, nodes, run_operator, other_kubeconfig, request, everywhere
):
    manifests = request.config.rootpath / "manifests"
    await install(cluster, manifests / "namespace.yaml")
    await install(cluster, manifests / "rbac.yaml")
    if not everywhere:
        await bind_in_namespace(cluster)
    account = ("pagetide-operator", SYSTEM) if everywhere else ("default", cluster.namespace)
    path = cluster.path("ServiceAccount", *account)
    answer = await cluster.client.request("POST", f"{path}/token", body={"spec": {"expirationSeconds": 3600}})
    config = other_kubeconfig("account", token=answer["status"]["token"])
    flags = ["--resync-seconds=2", *([f"--lease-namespace={SYSTEM}"] if everywhere else [])]
    process = run_operator(*flags, config=config, everywhere=everywhere)
    made = cluster.manifest("llm", model={"uri": "hf://org/name"}, cache={"size": "1Mi"})  # with a Job, too
    await cluster.create(made)
    await cluster.ready("llm")
    await cluster.patch(KIND, "llm", {"spec": {"cache": None, "replicas": 2}})  # deletes a child, scales another

    async def is_done():
        return await cluster.find("PersistentVolumeClaim", "llm-cache") is None and await cluster.is_ready("llm")

    await cluster.until(is_done, 40)
    assert [e for e in await cluster.list("Event") if e["reason"] == "Ready"]
    assert process.stop() == 0
    # In the words of RBAC. A namespace that another test has just deleted is forbidden ground in other words.
    assert "is forbidden: User" not in process.log.read_text()


async def test_of_two_operators_one_acts_and_the_other_takes_over(cluster, run_operator):
    election = f"--lease-namespace={cluster.namespace}"
    first = run_operator(election)

    async def holder():
        found = await cluster.find("Lease", "pagetide-operator")
        return found and found["spec"]["holderIdentity"]

    old = await cluster.until(holder)
    second = run_operator(election)
    await cluster.create(cluster.manifest("one", replicas=0))
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "one"))
    first.kill()
    killed = time.monotonic()
    await cluster.create(cluster.manifest("two", replicas=0))
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "two"), 20)
    assert time.monotonic() - killed < 15
    assert await holder() != old
    assert "apply Deployment one" not in second.log.read_text()
    assert second.stop() == 0
    assert await holder() == ""


async def test_a_leader_that_stood_still_does_nothing_more(cluster, run_operator):
    """What it saw and planned is old: another one acts by then."""
    election = f"--lease-namespace={cluster.namespace}"
    first = run_operator(election)
    await cluster.create(cluster.manifest("one", replicas=0))
    await cluster.until(lambda: cluster.find("PodDisruptionBudget", "one"))
    second = run_operator(election)
    first.process.send_signal(signal.SIGSTOP)
    for name in ("two", "three"):
        await cluster.create(cluster.manifest(name, replicas=0))
        await cluster.until(lambda n=name: cluster.find("PodDisruptionBudget", n), 20)
    await cluster.delete("Service", "one")
    before = first.log.read_text()
    first.process.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(first.process.wait, 20) == 1
    said = first.log.read_text().removeprefix(before)
    assert "the Lease is lost" in said
    assert " apply " not in said
    await cluster.until(lambda: cluster.find("Service", "one"))
    assert second.process.poll() is None


async def test_rights_are_no_wider_than_needed(cluster, other_kubeconfig, request):
    """The shipped account may read no Secret and change nothing of a service but its status."""
    await install(cluster, request.config.rootpath / "manifests/namespace.yaml")
    await install(cluster, request.config.rootpath / "manifests/rbac.yaml")
    account = f"system:serviceaccount:{SYSTEM}:pagetide-operator"
    for group, resource, verb in (("", "secrets", "get"), ("pagetide.dev", "inferenceservices", "patch")):
        attributes = {"namespace": cluster.namespace, "group": group, "resource": resource, "verb": verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": attributes},
        }
        answer = await cluster.client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
        assert not answer["status"]["allowed"]


async def test_bad_identity_is_told_in_one_line(cluster, run_operator, other_kubeconfig):
    process = run_operator(config=other_kubeconfig("nobody", token="nobody"))
    assert await asyncio.to_thread(process.process.wait, 20) == 1
    (line,) = [t for t in process.log.read_text().splitlines() if t.startswith("pagetide operator:")]
    assert line == "pagetide operator: API server: Unauthorized"
    with pytest.raises(ApiError):
        await cluster.service("none")
