"""The CustomResourceDefinition: generated, complete, and of a form that Kubernetes accepts."""

import json
from pathlib import Path

import celpy
import celpy.celparser
import celpy.evaluation
import pytest
import yaml

from pagetide_operator.crd_command import main
from pagetide_spec.crd import crd_yaml, custom_resource_definition
from pagetide_spec.flags import camel_of, resource_fields
from pagetide_spec.rules import RULES

ROOT = Path(__file__).parents[2]
CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def nodes(schema, path="$"):
    """(path, schema) of every field below `schema`."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from nodes(schema["items"], f"{path}[]")


def test_the_manifest_is_what_the_code_generates():
    assert (ROOT / "manifests/crd.yaml").read_text() == crd_yaml()


def test_the_command_prints_it(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == crd_yaml()


def test_without_rules_nothing_else_changes(capsys):
    assert main(["--no-rules"]) == 0
    text = capsys.readouterr().out
    assert "x-kubernetes-validations" not in text
    assert yaml.safe_load(text)["spec"]["names"] == CRD["spec"]["names"]


def test_every_field_is_described():
    bare = [path for path, node in nodes(SCHEMA) if not node.get("description") and path != "$.metadata"]
    assert not bare


def test_every_field_has_a_type_as_structural_schemas_demand():
    untyped = [p for p, n in nodes(SCHEMA) if "type" not in n and not n.get("x-kubernetes-int-or-string")]
    assert not untyped


def test_every_number_of_the_spec_has_a_lower_bound():
    numbers = [(p, n) for p, n in nodes(SPEC) if n.get("type") in ("integer", "number")]
    assert numbers
    assert not [p for p, n in numbers if "minimum" not in n and "enum" not in n]


def test_no_field_uses_what_structural_schemas_forbid():
    forbidden = {"additionalItems", "patternProperties", "dependencies", "$ref", "definitions", "oneOf"}
    assert not [p for p, n in nodes(SCHEMA) if forbidden & n.keys() or n.get("additionalProperties") is False]


def test_engine_has_every_field_of_the_configuration():
    assert set(SPEC["properties"]["engine"]["properties"]) == {camel_of(f.name) for f in resource_fields()}


def test_it_is_small_enough_for_client_side_apply():
    # kubectl keeps the whole manifest in an annotation of at most 262144 bytes.
    assert len(json.dumps(CRD)) < 262144 / 4


def test_printer_columns():
    assert [c["name"] for c in VERSION["additionalPrinterColumns"]] == [
        "Model",
        "Ready",
        "Replicas",
        "Desired",
        "Reason",
        "Age",
    ]


def test_names_and_subresources():
    names = CRD["spec"]["names"]
    assert (names["shortNames"], names["categories"], names["plural"]) == (["pgt"], ["all"], "inferenceservices")
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


def cel_holds(rule, value):
    """What a CEL evaluator says about `rule` with `self` = `value`."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.cel))
    return bool(program.evaluate({"self": celpy.json_to_cel(value)}))


MODELS = ["hf://a/b", "s3://a", "pvc://c/x/../y", "file:///x", "pvc://c/..", "file:///a..b"]
EXAMPLES = {
    (): [
        *({"replicas": 1}, {"autoscaling": {}}, {"replicas": 1, "autoscaling": {}}, {}),
        *({"cache": {"size": "1Gi"}, **more} for more in ({}, {"replicas": 1}, {"replicas": 2})),
        *({"cache": {"size": "1Gi"}, "autoscaling": {"maxReplicas": most}} for most in (1, 2)),
        {"cache": {"pvc": "c"}, "replicas": 2},
    ],
    ("model",): [{"uri": u} for u in MODELS] + [{"uri": u, "revision": "v1"} for u in MODELS],
    ("autoscaling",): [{"minReplicas": low, "maxReplicas": 2} for low in (0, 1, 2, 3)],
    ("cache",): [
        {"pvc": "c"},
        {"size": "1Gi"},
        {"pvc": "c", "size": "1Gi"},
        {},
        {"size": "1Gi", "storageClass": "fast"},
        {"pvc": "c", "storageClass": "fast"},
    ],
    ("rollout",): [
        {"maxSurge": surge, "maxUnavailable": missing} for surge in (0, 1, "0%", "25%") for missing in (0, 1, "0%")
    ],
}


@pytest.mark.parametrize("rule", [pytest.param(r, id=f"{'.'.join(r.path)} {r.message}") for r in RULES])
def test_each_rule_means_the_same_in_cel_and_in_python(rule):
    answers = [(cel_holds(rule, value), rule.holds(value)) for value in EXAMPLES[rule.path]]
    assert all(cel == python for cel, python in answers)
    assert {python for _, python in answers} == {True, False}, "the examples do not show both answers"
