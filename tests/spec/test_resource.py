"""parse: what a manifest means, and everything that may be wrong with one."""

import copy

import pytest
import yaml

from pagetide_spec.documents import load_documents
from pagetide_spec.errors import ResourceError
from pagetide_spec.inference_service import Cache, Policy, SecretKey
from pagetide_spec.resource import dropped_fields, parse

MINIMAL = {
    "apiVersion": "pagetide.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "llm"},
    "spec": {"model": {"uri": "hf://org/name"}},
}


def manifest(spec=None, **metadata):
    out = copy.deepcopy(MINIMAL)
    out["spec"] |= spec or {}
    out["metadata"] |= metadata
    return out


def problems(value):
    with pytest.raises(ResourceError) as caught:
        parse(value, "file.yaml")
    return [str(p) for p in caught.value.problems]


def test_a_minimal_manifest_gets_defaults():
    service = parse(MINIMAL)
    assert (service.namespace, service.replicas, service.autoscaling, service.engine) == ("default", 1, None, {})
    assert (service.drain_seconds, service.startup_seconds, service.rollout.max_surge) == (60, 1800, 1)
    assert service.model.served_name == "llm"


@pytest.mark.parametrize(
    ("uri", "scheme", "claim", "path"),
    [
        pytest.param("hf://org/name", "hf", None, "org/name", id="hub id"),
        pytest.param("pvc://models/a/b.gguf", "pvc", "models", "a/b.gguf", id="file of a claim"),
        pytest.param("pvc://models", "pvc", "models", "", id="a whole claim"),
        pytest.param("file:///srv/model", "file", None, "/srv/model", id="absolute path"),
    ],
)
def test_model_uri(uri, scheme, claim, path):
    model = parse(manifest({"model": {"uri": uri}})).model
    assert (model.scheme, model.claim, model.path) == (scheme, claim, path)


def test_engine_fields_come_under_the_names_of_the_configuration():
    service = parse(manifest({"engine": {"maxNumSeqs": 8, "enablePrefixCaching": False}}))
    assert service.engine == {"max_num_seqs": 8, "enable_prefix_caching": False}


def test_autoscaling_takes_the_place_of_replicas_and_has_the_defaults_of_hpa_v2():
    service = parse(manifest({"autoscaling": {"maxReplicas": 4}}))
    scaling = service.autoscaling
    assert service.replicas is None
    assert (scaling.min_replicas, scaling.max_replicas, scaling.queue_time_seconds) == (1, 4, 0.5)
    assert scaling.scale_up.policies == (Policy("Percent", 100, 15), Policy("Pods", 4, 15))
    assert (scaling.scale_up.stabilization_window_seconds, scaling.scale_down.stabilization_window_seconds) == (0, 300)


def test_secrets_have_default_keys():
    service = parse(manifest({"apiKeySecretRef": {"name": "keys"}}))
    assert service.api_key_secret == SecretKey("keys", "api-key")


def test_a_cache_to_create():
    assert parse(manifest({"cache": {"size": "50Gi"}})).cache == Cache(size="50Gi")


def test_paused_by_annotation():
    assert parse(manifest(annotations={"pagetide.dev/paused": "true"})).paused
    assert not parse(manifest(annotations={"pagetide.dev/paused": "false"})).paused


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"engine": {"maxNumSeq": 8}},
            "spec.engine.maxNumSeq: 8: no such setting; did you mean maxNumSeqs?",
            id="misspelt engine field",
        ),
        pytest.param(
            {"engine": {"port": 1}},
            "spec.engine.port: 1: belongs to one server process, not to a resource: leave it out",
            id="a setting of the process",
        ),
        pytest.param(
            {"engine": {"servedModelName": "x"}},
            "spec.engine.servedModelName: 'x': is given as spec.model.servedName",
            id="a setting of the model",
        ),
        pytest.param(
            {"engine": {"apiKeyFile": "/k"}},
            "spec.engine.apiKeyFile: '/k': is given as spec.apiKeySecretRef",
            id="a setting that is a Secret",
        ),
        pytest.param(
            {"rolout": {}}, "spec.rolout: {}: no such setting; did you mean rollout?", id="misspelt field of spec"
        ),
        pytest.param({"model": {}}, "spec.model.uri: None: is required", id="missing field"),
        pytest.param(
            {"model": {"uri": "s3://bucket"}},
            "spec.model.uri: 's3://bucket': must be hf://org/name, pvc://claim/path or file:///path",
            id="unknown kind of uri",
        ),
        pytest.param(
            {"model": {"uri": "pvc://c/../x"}}, "spec.model.uri: 'pvc://c/../x': must not contain `..`", id="dot dot"
        ),
        pytest.param({"replicas": -1}, "spec.replicas: -1: must be at least 0", id="negative replicas"),
        pytest.param({"replicas": "two"}, "spec.replicas: 'two': must be a whole number", id="text for a number"),
        pytest.param({"replicas": 2**31}, f"spec.replicas: {2**31}: must be below {2**31}", id="beyond int32"),
        pytest.param(
            {"replicas": -(2**31) - 1}, f"spec.replicas: {-(2**31) - 1}: must be at least 0", id="below int32"
        ),
        pytest.param(
            {"engine": {"gpuMemoryUtilization": 0}},
            "spec.engine.gpuMemoryUtilization: 0: must be above 0",
            id="exclusive bound",
        ),
        pytest.param(
            {"engine": {"blockSize": 7}}, "spec.engine.blockSize: 7: must be one of 8, 16, 32", id="not a choice"
        ),
        pytest.param(
            {"replicas": 1, "autoscaling": {"maxReplicas": 2}},
            "spec.replicas: 1: set either replicas or autoscaling, not both",
            id="replicas and autoscaling",
        ),
        pytest.param(
            {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
            "spec.autoscaling.maxReplicas: 2: must not be less than minReplicas",
            id="min above max",
        ),
        pytest.param(
            {"cache": {"pvc": "a", "size": "1Gi"}},
            "spec.cache.pvc: 'a': set either pvc (an existing claim) or size (a claim to create)",
            id="two caches",
        ),
        pytest.param(
            {"rollout": {"maxSurge": 0}},
            "spec.rollout.maxSurge: 0: maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
            id="a rollout that cannot move",
        ),
        pytest.param(
            {"rollout": {"maxSurge": "1x"}},
            "spec.rollout.maxSurge: '1x': must be a number or a percentage such as 25%",
            id="neither number nor percent",
        ),
        pytest.param({"inferencePool": {}}, "spec.inferencePool.endpointPicker: None: is required", id="no picker"),
        pytest.param(
            {"inferencePool": {"endpointPicker": {"name": "p", "port": 0}}},
            "spec.inferencePool.endpointPicker.port: 0: must be at least 1",
            id="no port",
        ),
        pytest.param(
            {"inferencePool": {"endpointPicker": {"name": "p", "failureMode": "failOpen"}}},
            "spec.inferencePool.endpointPicker.failureMode: 'failOpen': must be one of FailOpen, FailClose",
            id="an unknown failure mode",
        ),
        pytest.param({"engine": None}, "spec.engine: None: must be a mapping", id="an empty section"),
        pytest.param(
            {"engine": {"trustRemoteCode": "yes"}},
            "spec.engine.trustRemoteCode: 'yes': must be true or false",
            id="text for a truth",
        ),
        pytest.param(
            {"template": {"nodeselector": {}}},
            "spec.template.nodeselector: {}: no such setting; did you mean nodeSelector?",
            id="misspelt field of the pod",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_the_way_out(spec, expected):
    assert problems(manifest(spec)) == [expected]


def test_every_problem_is_told_at_once():
    found = problems(manifest({"replicas": -1, "engine": {"blockSize": 7, "sed": 1}}))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("a" * 64, "has 64 characters; at most 54 fit into the names of its children", id="too long"),
        pytest.param("llama-3.1", "must be a DNS label", id="a dot"),
        pytest.param("3-llamas", "must be a DNS label", id="a digit first"),
        pytest.param(None, "is required", id="no name"),
    ],
)
def test_names(name, expected):
    (found,) = problems(manifest(name=name))
    assert found.startswith("metadata.name: ")
    assert expected in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: [", "f.yaml: document: 'line 1, column 5': is not YAML: expected", id="not YAML"),
        pytest.param("---\n", "f.yaml: document: '': holds no InferenceService", id="nothing in it"),
        pytest.param("- 1", "f.yaml: document: [1]: must be a mapping with kind: InferenceService", id="a list"),
        pytest.param(
            "apiVersion: pagetide.dev/v1alpha1\nkind: Deployment",
            "f.yaml: kind: 'Deployment': must be InferenceService",
            id="another kind",
        ),
        pytest.param(
            "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService",
            "f.yaml: apiVersion: 'serving.kserve.io/v1beta1': must be pagetide.dev/v1alpha1",
            id="another group's kind of the same name",
        ),
        pytest.param(
            "apiVersion: pagetide.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: a}",
            "f.yaml: spec: None: must be a mapping",
            id="no spec",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text, expected):
    with pytest.raises(ResourceError) as caught:
        load_documents(text, "f.yaml")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_several_documents_of_one_file():
    text = yaml.safe_dump_all([manifest(name="a"), None, manifest(name="b")])
    assert [d["metadata"]["name"] for d in load_documents(text, "f.yaml")] == ["a", "b"]


def test_a_field_that_the_api_server_dropped_is_found_in_what_was_applied():
    applied = manifest({"engine": {"maxNumSeq": 8, "blockSize": 7}})
    assert [p.field for p in dropped_fields(applied)] == ["spec.engine.maxNumSeq"]
