"""What YAML lets pass and a service cannot be: one clear line each, never an exception of another kind."""

from __future__ import annotations

import json

import pytest

from pagetide_spec.documents import load_documents
from pagetide_spec.errors import ResourceError
from pagetide_spec.resource import parse

HEAD = "apiVersion: pagetide.dev/v1alpha1\nkind: InferenceService\n"


def file(metadata: str = "name: a", model: str = "uri: 'hf://org/name'", more: str = "") -> str:
    return f"{HEAD}metadata: {{{metadata}}}\nspec: {{model: {{{model}}}{more}}}\n"


def read(text: str) -> None:
    for document in load_documents(text, "f.yaml"):
        parse(document, "f.yaml")


NAMED = "uri: 'hf://org/name', "
DEEP = "[" * 3000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(file(more=", 1: 2"), ["line 4", "field '1' must be text"], id="a number as field"),
        pytest.param(file(more=", true: 2"), ["field 'true' must be text"], id="a boolean as field"),
        pytest.param(file(more=", null: 2"), ["field 'null' must be text"], id="null as field"),
        pytest.param(file(more=", [a]: 2"), ["must be text"], id="a list as field"),
        pytest.param(file(more=", replicas: 1, replicas: 2"), ["'replicas' stands twice"], id="a field twice"),
        pytest.param(file() + "spec: {}\n", ["line 5", "'spec' stands twice"], id="the whole spec twice"),
        pytest.param(file(more=", engine: {seed: 4, seed: 8}"), ["'seed' stands twice"], id="an engine field twice"),
        pytest.param(file(more=", replicas: 2020-99-99"), ["is not YAML"], id="a date that there is not"),
        pytest.param(file(more=", replicas: !!int abc"), ["is not YAML"], id="a tag that does not fit"),
        pytest.param(file(more=f", replicas: {'9' * 5000}"), ["is not YAML"], id="more digits than Python takes"),
        pytest.param(DEEP, ["nested too deep"], id="nested too deep to read"),
        pytest.param(file(more=", resources: &r {limits: *r}"), ["spec.resources", "64 deep"], id="an alias of itself"),
        pytest.param(
            file(more=f", template: {{labels: &a {{x: y}}, env: [{', '.join(['*a'] * 20_001)}]}}"),
            ["spec.template", "20000 values"],
            id="aliases without end",
        ),
        pytest.param(file(model=NAMED + r'servedName: "\ud800"'), ["servedName", "U+D800"], id="a lone surrogate"),
        pytest.param(file(model=NAMED + r'servedName: "x\0y"'), ["servedName", "U+0000"], id="NUL in a name"),
        pytest.param(file(model=NAMED + r'revision: "x\0y"'), ["revision", "U+0000"], id="NUL in a revision"),
        pytest.param(file(more=", startupSeconds: .nan"), ["startupSeconds", "a finite number"], id="not a number"),
        pytest.param(
            file(more=r', template: {env: [{name: A, value: "x\0y"}]}'),
            ["spec.template.env[0].value", "U+0000"],
            id="NUL in a variable",
        ),
        pytest.param(
            file(more=", template: {env: [{name: A, value: 1}]}"),
            ["spec.template.env[0].value", "must be text"],
            id="a variable that is a number",
        ),
        pytest.param(file("name: a, annotations: x"), ["metadata.annotations", "mapping"], id="annotations as text"),
        pytest.param(file("name: a, labels: {b: 1}"), ["metadata.labels.b", "text"], id="a label that is a number"),
        pytest.param(file("name: a, namespace: [1]"), ["metadata.namespace", "DNS label"], id="a list as namespace"),
        pytest.param(file(more=", replicas: 1, autoscaling: {}"), ["spec.autoscaling"], id="both, and no maxReplicas"),
        pytest.param(file(more=", replicas: 1, autoscaling: 5"), ["spec.autoscaling"], id="both, and no mapping"),
        pytest.param(
            file(model="", more=", replicas: 1, autoscaling: {maxReplicas: 2}"),
            ["spec.model.uri"],
            id="both, and no uri",
        ),
        pytest.param(file(more=", rollout: {maxSurge: 2147483648}"), ["spec.rollout.maxSurge"], id="over 32 bits"),
        pytest.param(
            file(more=", resources: {limits: {cpu: lots}}"), ["spec.resources.limits.cpu", "lots"], id="no amount"
        ),
        pytest.param(
            file(more=", resources: {limits: {nvidia.com/gpu: -1}}"),
            ["spec.resources.limits.nvidia.com/gpu", "-1"],
            id="a negative amount",
        ),
    ],
)
def test_an_odd_file_is_refused_in_one_line(text, words):
    with pytest.raises(ResourceError) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith("f.yaml: ")
    assert "\n" not in said
    for word in words:
        assert word in said


def test_anchors_merge_keys_and_fractions_of_a_core_are_fine():
    text = file(more=", resources: {limits: &l {cpu: 0.5, memory: 1Gi}, requests: {<<: *l, cpu: 250m}}")
    (document,) = load_documents(text, "f.yaml")
    assert parse(document).resources["requests"] == {"cpu": "250m", "memory": "1Gi"}


def test_a_resource_of_the_api_server_is_checked_alike():
    (document,) = load_documents(file(), "f.yaml")
    document["spec"]["model"]["servedName"] = json.loads(r'"\u0000"')
    with pytest.raises(ResourceError, match=r"spec\.model\.servedName.*U\+0000"):
        parse(document)
