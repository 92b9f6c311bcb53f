"""The Helm chart: the same as the manifests, and checked values."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pagetide_operator.main import options_from, parser
from pagetide_spec.crd import crd_yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/pagetide"
HELM = os.environ.get("HELM") or shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm: put it on PATH, or name it in HELM")


def test_its_crds_are_copies_of_the_generated_one():
    assert (CHART / "files/crd.yaml").read_text() == crd_yaml()
    assert (CHART / "files/crd-without-rules.yaml").read_text() == crd_yaml(rules=False)


def helm(*args, check=True):
    done = subprocess.run([HELM, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or not check, done.stderr
    return done


def rendered(*flags):
    """(kind, name) -> manifest."""
    text = helm("template", "release", str(CHART), "--namespace=pagetide-system", *flags).stdout
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text) if d}


@needs_helm
def test_lint():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@needs_helm
def test_roles_are_those_of_the_manifests():
    found = rendered("--kube-version=1.30.0")
    for name in ("rbac", "gateway"):
        for document in yaml.safe_load_all((ROOT / f"manifests/{name}.yaml").read_text()):
            if "rules" in document:
                assert found[document["kind"], document["metadata"]["name"]]["rules"] == document["rules"]


@needs_helm
@pytest.mark.parametrize("name", ["operator", "gateway"])
def test_workloads_are_those_of_the_manifests(name):
    ours = next(yaml.safe_load_all((ROOT / f"manifests/{name}.yaml").read_text()))["spec"]
    found = rendered("--kube-version=1.30.0")["Deployment", f"pagetide-{name}"]["spec"]
    (container,), (wanted,) = (s["template"]["spec"].pop("containers") for s in (found, ours))
    assert found["template"]["spec"] == ours["template"]["spec"]
    assert found["selector"] == ours["selector"]
    differing = {"args", "imagePullPolicy"}
    assert {k: v for k, v in container.items() if k not in differing} == {
        k: v for k, v in wanted.items() if k not in differing
    }


@needs_helm
@pytest.mark.parametrize(("version", "has_rules"), [("1.20.0", False), ("1.24.9", False), ("1.25.0", True)])
def test_rules_are_left_out_where_the_server_knows_none(version, has_rules):
    crd = rendered(f"--kube-version={version}")["CustomResourceDefinition", "inferenceservices.pagetide.dev"]
    assert ("x-kubernetes-validations" in str(crd)) is has_rules
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@needs_helm
def test_with_namespaces_there_are_no_rights_beyond_them():
    found = rendered("--kube-version=1.30.0", "--set", "operator.namespaces={a,b}")
    assert not [kind for kind, _ in found if kind.startswith("ClusterRole")]
    for name in ("operator", "gateway"):
        (container,) = found["Deployment", f"pagetide-{name}"]["spec"]["template"]["spec"]["containers"]
        assert {"--namespace=a", "--namespace=b"} <= set(container["args"])


@needs_helm
def test_keys_of_the_gateway_come_from_a_secret():
    found = rendered("--kube-version=1.30.0", "--set", "gateway.apiKeysSecret=clients")
    pod = found["Deployment", "pagetide-gateway"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = [v for v in pod["volumes"] if v.get("secret", {}).get("secretName") == "clients"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == volume["name"]]
    assert f"--api-keys={mount['mountPath']}" in container["args"]


@needs_helm
@pytest.mark.parametrize(("version", "api"), [("1.20.0", "policy/v1beta1"), ("1.30.0", "policy/v1")])
def test_the_gateways_budget_has_the_version_of_the_cluster(version, api):
    found = rendered(f"--kube-version={version}")
    assert found["PodDisruptionBudget", "pagetide-gateway"]["apiVersion"] == api
    assert ("PodDisruptionBudget", "pagetide-gateway") not in rendered("--set", "gateway.replicas=1")


@needs_helm
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("operator.replica=1", id="misspelt"),
        pytest.param("operator.replicas=many", id="text for a number"),
        pytest.param("gateway.service.type=Sometimes", id="not a choice"),
    ],
)
def test_a_wrong_value_is_refused(value):
    assert helm("template", "release", str(CHART), "--set", value, check=False).returncode != 0


def names_of(schema, definitions):
    """The names that a schema knows, with those below them."""
    found = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    properties = found.get("properties")
    return properties and {k: names_of(v, definitions) for k, v in properties.items()}


def names_in(values, known):
    return {k: names_in(v, known[k]) for k, v in values.items()} if known and isinstance(values, dict) else None


def test_every_value_is_in_the_schema_and_the_other_way_round():
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = names_of(schema, schema["definitions"])
    del known["global"]  # helm's own
    assert names_in(yaml.safe_load((CHART / "values.yaml").read_text()), known) == known


def test_numbers_of_the_values_are_those_of_the_flags():
    operator = yaml.safe_load((CHART / "values.yaml").read_text())["operator"]
    options = options_from(parser().parse_args([]))
    assert (operator["resyncSeconds"], operator["surgePatienceSeconds"]) == (
        options.resync_seconds,
        options.surge_patience,
    )


@needs_helm
def test_every_part_can_be_left_out():
    found = rendered("--kube-version=1.30.0", "--set", "crds.install=false,gateway.enabled=false")
    assert not [name for _, name in found if "gateway" in name]
    assert not [kind for kind, _ in found if kind == "CustomResourceDefinition"]
