"""What is installed: complete, consistent with the code, and no wider than needed."""

import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pagetide_gateway.options import parser as gateway_parser
from pagetide_operator.cluster.kinds import CHILDREN, OPTIONAL
from pagetide_operator.main import DEFAULT_IMAGE, options_from, parser
from pagetide_operator.running.leader import NAME as LEASE
from pagetide_spec.documents import load_documents
from pagetide_spec.names import GATEWAY_PORT, GROUP, OPERATOR_METRICS_PORT, PLURAL
from pagetide_spec.resource import parse
from pagetide_spec.schema import spec_schema

MANIFESTS = Path(__file__).parents[2] / "manifests"


def documents(name):
    return [d for d in yaml.safe_load_all((MANIFESTS / name).read_text()) if d]


def find(name, kind, of):
    return next(d for d in documents(name) if d["kind"] == kind and d["metadata"]["name"] == of)


def test_the_kustomization_installs_every_manifest_that_works_as_it_is():
    listed = set(yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"])
    assert listed == {p.name for p in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.parametrize("path", sorted((MANIFESTS / "samples").glob("*.yaml")), ids=lambda p: p.name)
def test_samples_are_valid(path):
    assert [parse(d, path.name) for d in load_documents(path.read_text(), path.name)]


SAMPLES = {
    "one GPU": ("one-gpu", lambda s: s.resources["limits"]["nvidia.com/gpu"] == 1 and s.cache.size),
    "four replicas at most, as the load asks": ("autoscaled", lambda s: s.autoscaling.max_replicas == 4),
    "quantized weights": ("quantized", lambda s: s.engine["quantization"] == "auto" and s.model.path.endswith(".gguf")),
    "much shared prefix": ("rag", lambda s: s.engine["enable_prefix_caching"] and s.engine["swap_space_gib"] > 4),
    "a private registry and a hub token": (
        "private",
        lambda s: s.template["imagePullSecrets"] and s.model.token_secret and s.api_key_secret,
    ),
    "a model on a claim": ("gemma-3-270m", lambda s: s.model.claim == "models"),
}


@pytest.mark.parametrize("what", SAMPLES)
def test_there_is_a_sample_for(what):
    name, shows = SAMPLES[what]
    (document,) = load_documents((MANIFESTS / f"samples/{name}.yaml").read_text(), name)
    assert shows(parse(document, name))


def test_no_sample_is_left_out():
    assert {f"{name}.yaml" for name, _ in SAMPLES.values()} == {p.name for p in (MANIFESTS / "samples").iterdir()}


def test_the_operator_may_do_what_it_does_to_each_kind_and_no_more():
    rules = find("rbac.yaml", "ClusterRole", "pagetide-operator")["rules"]
    allowed = {(g, r): set(x["verbs"]) for x in rules for g in x["apiGroups"] for r in x["resources"]}
    for kind in (*CHILDREN, *OPTIONAL):
        verbs = {"list"} | ({"watch"} if kind.is_watched else set())
        # Of a pod the operator changes annotations alone: who drains, and who is to go first.
        verbs |= {"patch"} if kind.name == "Pod" else {"get", "create", "patch", "delete"}
        for group in {version.rpartition("/")[0] for version in kind.versions}:
            assert allowed.pop((group, kind.plural)) == verbs, kind.name
    assert allowed == {
        (GROUP, PLURAL): {"get", "list", "watch"},
        (GROUP, f"{PLURAL}/status"): {"patch"},
        (GROUP, f"{PLURAL}/finalizers"): {"update"},
        ("", "events"): {"create"},
    }


def test_no_role_reads_secrets_or_allows_everything():
    rules = [r for name in ("rbac.yaml", "gateway.yaml") for d in documents(name) for r in d.get("rules", [])]
    assert not [r for r in rules if "secrets" in r["resources"] or "*" in str(r)]


def test_the_gateway_may_look_at_services_and_pods_and_wake_services():
    (rule, pods) = find("gateway.yaml", "ClusterRole", "pagetide-gateway")["rules"]
    assert rule == {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["list", "watch", "patch"]}
    assert pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


def test_the_lease_of_the_role_is_the_one_of_the_code():
    (named,) = [r for r in find("rbac.yaml", "Role", "pagetide-operator")["rules"] if "resourceNames" in r]
    assert named["resourceNames"] == [LEASE]


@pytest.mark.parametrize(
    ("name", "command", "port"),
    [("operator", "operator", OPERATOR_METRICS_PORT), ("gateway", "gateway", GATEWAY_PORT)],
)
def test_workloads_are_restricted_and_listen_where_the_code_does(name, command, port):
    pod = find(f"{name}.yaml", "Deployment", f"pagetide-{name}")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == command
    assert container["ports"][0]["containerPort"] == port
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["image"].startswith("pagetide/operator:")


def test_the_gateway_drains_within_its_grace_period_and_as_long_as_services_do():
    pod = find("gateway.yaml", "Deployment", "pagetide-gateway")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    drain = gateway_parser().parse_args(container["args"][1:]).drain_seconds
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    of_services = spec_schema()["properties"]["drainSeconds"]["default"]
    assert of_services <= drain < pod["terminationGracePeriodSeconds"] - pre_stop


def test_the_flags_of_the_manifest_are_flags_of_the_command():
    (container,) = find("operator.yaml", "Deployment", "pagetide-operator")["spec"]["template"]["spec"]["containers"]
    options = options_from(parser().parse_args(container["args"][1:]))
    assert (options.namespaces, options.image) == ((), DEFAULT_IMAGE)
    assert options.lease_namespace is not None


def test_all_images_have_the_version_of_the_project():
    project = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((MANIFESTS.parent / "charts/pagetide/Chart.yaml").read_text())
    workloads = [find(f"{n}.yaml", "Deployment", f"pagetide-{n}") for n in ("operator", "gateway")]
    images = [DEFAULT_IMAGE, *(w["spec"]["template"]["spec"]["containers"][0]["image"] for w in workloads)]
    assert {i.rpartition(":")[2] for i in images} | {chart["version"], chart["appVersion"]} == {project}


def test_the_operator_needs_no_torch():
    code = "import sys, pagetide_operator.main; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0


def test_a_busy_port_is_told_in_one_line(tmp_path):
    config = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": []}
    contexts = [{"name": "x", "context": {"cluster": "c", "user": ""}}]
    config |= {"apiVersion": "v1", "kind": "Config", "contexts": contexts, "current-context": "x"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KUBECONFIG": str(tmp_path / "config")}
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "pagetide_operator.main", f"--metrics-port={port}"]
        done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pagetide operator: --metrics-port: {port}: ")


@pytest.mark.parametrize("flag", ["--resync-seconds=-1", "--resync-seconds=0", "--surge-patience-seconds=nan"])
def test_a_time_that_is_none_is_refused(flag, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args([flag])
    assert "must be a number of seconds" in capsys.readouterr().err


def test_without_a_cluster_it_says_so_in_one_line(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "pagetide_operator.main"], env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("pagetide operator: no cluster: ")
    assert done.stderr.count("\n") == 1
