"""The CustomResourceDefinition on a real API server: what it takes, and what it refuses."""

import json

import pytest
import yaml

from pagetide_operator.cluster.client import ApiError

pytestmark = pytest.mark.cluster


async def test_the_api_server_refuses_what_it_can_check(cluster):
    bad = cluster.manifest("llm", replicas=-1, engine={"blockSize": 7})
    with pytest.raises(ApiError) as caught:
        await cluster.create(bad)
    assert caught.value.code == 422
    assert "spec.replicas" in caught.value.message
    assert "spec.engine.blockSize" in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"model": {"uri": "pvc://a/../b"}}, "must not contain", id="a path that climbs"),
        pytest.param({"model": {"uri": "file:///a", "revision": "v"}}, "only hf://", id="a revision of a file"),
        pytest.param({"cache": {"pvc": "a", "size": "1Gi"}}, "either pvc", id="two caches"),
        pytest.param({"cache": {"pvc": "a", "storageClass": "b"}}, "set size, too", id="a class without a claim"),
        pytest.param({"cache": {"size": "1Gi"}, "replicas": 2}, "one node only", id="a claim for two replicas"),
        pytest.param({"rollout": {"maxSurge": 0}}, "must not both be 0", id="a rollout that cannot move"),
        pytest.param(
            {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}, "replicas": None}, "minReplicas", id="bounds crossed"
        ),
    ],
)
async def test_the_api_server_checks_rules_between_fields_where_it_knows_any(cluster, change, words, knows_rules):
    if not knows_rules:
        pytest.skip("needs Kubernetes 1.25, which checks CEL rules")
    spec = {k: v for k, v in {**cluster.manifest("llm")["spec"], **change}.items() if v is not None}
    with pytest.raises(ApiError, match=words):
        await cluster.create({**cluster.manifest("llm"), "spec": spec})


async def test_replicas_and_autoscaling_together_are_refused_by_servers_of_every_age(cluster):
    with pytest.raises(ApiError) as caught:
        await cluster.create(cluster.manifest("llm", autoscaling={"maxReplicas": 2}))
    assert caught.value.code == 422


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"replicas": -1}, "spec.replicas", id="a bound"),
        pytest.param({"engine": {"dtype": "float8"}}, "spec.engine.dtype", id="a choice"),
        pytest.param({"model": {"uri": "s3://bucket/model"}}, "spec.model.uri", id="a form"),
        pytest.param({"model": {}}, "uri", id="something required"),
        pytest.param({"engine": {"maxNumSeq": 8}}, "maxNumSeq", id="a misspelt field"),
    ],
)
async def test_apply_refuses_what_the_operator_would_refuse(cluster, kubectl, change, words):
    made = cluster.manifest("llm")
    made["spec"] |= change
    text = await kubectl("apply", f"--namespace={cluster.namespace}", "--dry-run=server", "-f", "-",
                         stdin=json.dumps(made), check=False)  # fmt: skip
    assert "created (server dry run)" not in text
    assert words in text


async def test_the_api_server_takes_every_sample(cluster, kubectl, request):
    folder = str(request.config.rootpath / "manifests/samples")
    space = f"--namespace={cluster.namespace}"
    said = await kubectl("apply", space, "--dry-run=server", "-f", folder)
    assert said.count("created (server dry run)") == len(
        list((request.config.rootpath / "manifests/samples").iterdir())
    )


async def test_the_crd_is_small_enough_for_client_side_apply(cluster, kubectl, request):
    """kubectl notes the whole manifest in an annotation, and annotations have room for 256 KiB."""
    path = request.config.rootpath / "manifests/crd.yaml"
    await kubectl("apply", "--dry-run=server", "--validate=false", "-f", str(path))
    assert len(json.dumps(yaml.safe_load(path.read_text()))) < 128 * 1024
