"""Installing by kubectl and by helm on a real API server: valid by its schemas, and an operator in pods that works."""

import copy
import json

import jsonschema
import pytest
import yaml

from pagetide_spec.crd import CRD_NAME
from pagetide_spec.names import KIND

pytestmark = pytest.mark.cluster

SYSTEM = "pagetide-system"
CHART = "charts/pagetide"
# Others' objects may stand where a chart's are to be; in tests those of the test before.
TAKE = ("--take-ownership", "--force-conflicts")


def strict(schema):
    """`schema` with every field that it does not name refused, and what OpenAPI says in its own way said in JSON's."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: strict(v) for k, v in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        out["additionalProperties"] = False
    if schema.get("format") == "int-or-string":
        out["type"] = ["string", "integer"]
    if schema.get("type") == "string" and str(schema.get("description", "")).startswith("Quantity is"):
        out["type"] = ["string", "number"]
    return out


@pytest.fixture
async def check(cluster):
    """Check a manifest against the API server's own OpenAPI schemas; its problems."""
    api = await cluster.client.request("GET", "/openapi/v2")
    names = {
        (f"{k['group']}/{k['version']}".lstrip("/"), k["kind"]): name
        for name, schema in api["definitions"].items()
        for k in schema.get("x-kubernetes-group-version-kind", [])
    }
    definitions = strict(api["definitions"])

    def problems(manifest):
        name = names[manifest["apiVersion"], manifest["kind"]]
        schema = {"definitions": definitions, "$ref": f"#/definitions/{name}"}
        found = jsonschema.Draft4Validator(schema).iter_errors(manifest)
        return [f"{manifest['kind']}: {'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in found]

    return problems


async def manifests_of(root):
    """Every document under manifests/."""
    paths = [p for p in sorted((root / "manifests").glob("*.yaml")) if p.name not in ("kustomization.yaml", "crd.yaml")]
    return [d for p in paths for d in yaml.safe_load_all(p.read_text()) if d]


VALUES = {
    "as it comes": [],
    "with everything": [
        "--set=operator.priorityClassName=high,gateway.service.annotations.a=b",
        "--set=imagePullSecrets[0].name=registry,operator.nodeSelector.disk=ssd,gateway.extraArgs={--a=b}",
        '--set-json=operator.tolerations=[{"key": "gpu", "operator": "Exists"}]',
        '--set-json=operator.affinity={"podAntiAffinity": {}}',
    ],
    "in some namespaces": ["--set=operator.namespaces={a,b}"],
}


@pytest.mark.parametrize("values", VALUES)
async def test_what_the_chart_makes_is_valid_by_the_servers_own_schemas(check, helm, cluster, request, values):
    version = (await cluster.client.request("GET", "/version"))["gitVersion"]
    flags = [f"--namespace={SYSTEM}", f"--kube-version={version}", *VALUES[values]]
    text = await helm("template", "pagetide", str(request.config.rootpath / CHART), *flags)
    made = [d for d in yaml.safe_load_all(text) if d]
    assert len(made) > 5
    assert [p for d in made for p in check(d)] == []


async def test_the_manifests_are_valid_by_the_servers_own_schemas(check, request):
    made = await manifests_of(request.config.rootpath)
    assert len(made) > 5
    assert [p for d in made for p in check(d)] == []


async def test_the_check_finds_what_is_wrong(check, request):
    made = await manifests_of(request.config.rootpath)
    deployment = next(d for d in made if d["kind"] == "Deployment")
    misspelt, retyped = copy.deepcopy(deployment), copy.deepcopy(deployment)
    misspelt["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    retyped["spec"]["replicas"] = "2"
    assert "'livenessprobe' was unexpected" in check(misspelt)[0]
    assert "spec.replicas" in check(retyped)[0]


async def test_the_manifests_are_ready_for_server_side_apply_on_the_oldest_server(cluster, kubectl, request):
    """Kubernetes 1.20 fills in no default protocol of a port before it merges by it."""
    folder = str(request.config.rootpath / "manifests")
    await kubectl("apply", "-f", f"{folder}/namespace.yaml")
    for name in ("operator", "rbac"):
        await kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=false",
                      "-f", f"{folder}/{name}.yaml")  # fmt: skip


async def is_serving(cluster, name="llm"):
    await cluster.create(cluster.manifest(name))
    await cluster.ready(name, 60)


async def test_the_chart_brings_an_operator_and_leaves_services_alone(cluster, images, helm, kubectl, request):
    chart = str(request.config.rootpath / CHART)
    flags = [f"--namespace={SYSTEM}", "--wait", "--timeout=90s", *TAKE]
    await helm("upgrade", "--install", "pagetide", chart, "--create-namespace", *flags)
    try:
        await is_serving(cluster)
        made, pods = await cluster.service("llm"), await uids(cluster, "Pod")
        changed = ["--set=operator.logLevel=debug,operator.replicas=1"]
        await helm("upgrade", "pagetide", chart, *flags, *changed)
        deployment = await cluster.get("Deployment", "pagetide-operator", SYSTEM)
        assert "--log-level=debug" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        await is_serving(cluster, "another")  # by the new operator
        assert await uids(cluster, "Pod") > pods
        assert (await cluster.service("llm"))["metadata"]["uid"] == made["metadata"]["uid"]
    finally:
        await helm("uninstall", "pagetide", f"--namespace={SYSTEM}", "--wait")
    assert await uids(cluster, KIND) >= {made["metadata"]["uid"]}
    assert await uids(cluster, "Pod") > pods
    assert CRD_NAME in await kubectl("get", "crd", CRD_NAME, "-o", "name")


async def uids(cluster, kind):
    return {o["metadata"]["uid"] for o in await cluster.list(kind) if "deletionTimestamp" not in o["metadata"]}


async def test_a_user_of_kubectl_meets_what_he_knows(cluster, images, kubectl, request):
    """apply -k, get, describe, explain, scale, rollout restart, delete: with two operators in pods."""
    folder = str(request.config.rootpath / "manifests")
    await kubectl("apply", "--validate=false", "-k", folder)
    space = f"--namespace={cluster.namespace}"
    try:
        await kubectl("rollout", "status", f"--namespace={SYSTEM}", "deployment/pagetide-operator", "--timeout=60s")
        await kubectl("apply", space, "-f", "-", stdin=json.dumps(cluster.manifest("llm")))
        await kubectl("wait", space, "--for=condition=Ready", "pgt/llm", "--timeout=60s")
        head, row = (await kubectl("get", space, "pgt", "llm")).splitlines()[:2]
        assert head.split() == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "REASON", "AGE"]
        assert row.split()[:6] == ["llm", "file:///srv/model", "True", "1", "1", "Ready"]
        assert "inferenceservice.pagetide.dev/llm" in await kubectl("get", space, "all")
        assert "1 of 1 replicas serve" in await kubectl("describe", space, "pgt/llm")
        assert "Sequences that may run at once" in await kubectl("explain", "inferenceservice.spec.engine.maxNumSeqs")
        await kubectl("scale", space, "pgt/llm", "--replicas=2")
        await kubectl("wait", space, "--for=jsonpath={.status.readyReplicas}=2", "pgt/llm", "--timeout=60s")
        old = await uids(cluster, "Pod")
        await kubectl("rollout", "restart", space, "deployment/llm")
        await kubectl("rollout", "status", space, "deployment/llm", "--timeout=60s")
        await cluster.until(lambda: is_replaced(cluster, old))
        await kubectl("delete", space, "pgt/llm")
        await cluster.until(lambda: is_empty(cluster), 60)
    finally:
        await kubectl("delete", "-f", f"{folder}/operator.yaml", "-f", f"{folder}/gateway.yaml")


async def is_replaced(cluster, old):
    new = await uids(cluster, "Pod")
    return len(new) == 2 and not new & old


async def is_empty(cluster):
    return not await cluster.list("Pod") and not await cluster.list("Deployment")
