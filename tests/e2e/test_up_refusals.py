"""`pagetide up` with input that it cannot take: one clear line, and nothing is started."""

from __future__ import annotations

import json

import pytest


def test_with_json_logs_a_wrong_file_is_an_object_too(run, tmp_path):
    (tmp_path / "service.yaml").write_text(json.dumps({**GOOD, "kind": "Pod"}))
    one = run("-m", "pagetide_cli.main", "up", "--port=0", "--log-format=json", "service.yaml")
    assert one.process.wait(30) == 2
    (line,) = map(json.loads, one.text.splitlines())
    assert line["level"] == "error"
    assert line["message"].startswith("pagetide up: service.yaml: kind: 'Pod'")


GOOD = {
    "apiVersion": "pagetide.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "a"},
    "spec": {"model": {"uri": "hf://org/name"}},
}


def changed(**spec: object) -> str:
    return json.dumps({**GOOD, "spec": {**GOOD["spec"], **spec}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(changed(engine={"maxNumSeq": 4}), ["spec.engine.maxNumSeq", "maxNumSeqs"], id="misspelt"),
        pytest.param(changed(engine={"maxNumSeqs": "many"}), ["spec.engine.maxNumSeqs", "many"], id="wrong type"),
        pytest.param(changed(engine={"maxNumSeqs": 0}), ["spec.engine.maxNumSeqs", "0"], id="out of range"),
        pytest.param(changed(replica=2), ["spec.replica", "replicas"], id="unknown field"),
        pytest.param(changed(model={"uri": "s3://a/b"}), ["spec.model.uri", "s3://a/b"], id="unknown scheme"),
        pytest.param(changed(model={"uri": "pvc://models/no.gguf"}), ["spec.model.uri", "no.gguf"], id="missing model"),
        pytest.param(changed(model={"uri": "file:///no/such"}), ["spec.model.uri", "/no/such"], id="missing path"),
        pytest.param(
            changed(engine={"chatTemplate": "no.jinja"}), ["spec.engine.chatTemplate", "no.jinja"], id="no template"
        ),
        pytest.param(
            changed(replicas=1, autoscaling={"maxReplicas": 2}),
            ["replicas", "autoscaling"],
            id="replicas and autoscaling",
        ),
        pytest.param(
            changed(replicas=1_000_000), ["spec.replicas", "1000000", "--max-replicas"], id="more than a machine holds"
        ),
        pytest.param(
            changed(autoscaling={"minReplicas": 9, "maxReplicas": 9}),
            ["spec.autoscaling.minReplicas", "9", "--max-replicas"],
            id="more than a machine holds, by autoscaling",
        ),
        pytest.param(changed(autoscaling={}), ["spec.autoscaling.maxReplicas", "required"], id="half an autoscaling"),
        pytest.param(
            changed(replicas=1, autoscaling={}),
            ["spec.autoscaling.maxReplicas", "either replicas or autoscaling"],
            id="half an autoscaling beside replicas",
        ),
        pytest.param(changed(template={"env": [{"value": "x"}]}), ["spec.template.env"], id="a variable without name"),
        pytest.param(json.dumps({**GOOD, "kind": "Pod"}), ["kind", "Pod"], id="another kind"),
        pytest.param(json.dumps({**GOOD, "metadata": {"name": "A b"}}), ["metadata.name", "A b"], id="a wrong name"),
        pytest.param("a: [", ["YAML"], id="not YAML"),
        pytest.param("", ["InferenceService"], id="an empty file"),
        pytest.param("- 1", ["document"], id="a list"),
        pytest.param(f"{json.dumps(GOOD)}\n---\n{json.dumps(GOOD)}", ["metadata.name", "'a'"], id="one name twice"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text, words, run, tmp_path):
    (tmp_path / "service.yaml").write_text(text)
    check_refused(run("-m", "pagetide_cli.main", "up", "--port=0", "service.yaml"), ["service.yaml", *words])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["no.yaml"], ["no.yaml", "No such file"], id="missing file"),
        pytest.param(["."], ["'.'", "directory"], id="a folder"),
        pytest.param(["good.yaml", "--port=99999"], ["--port", "99999"], id="no such port"),
        pytest.param(["good.yaml", "--host=256.1.1.1"], ["--host", "256.1.1.1"], id="no such address"),
        pytest.param(["--status", "--port=1"], ["--port", "1"], id="status of nothing"),
    ],
)
def test_wrong_arguments_are_one_clear_line(arguments, words, run, tmp_path):
    (tmp_path / "good.yaml").write_text(changed())
    check_refused(run("-m", "pagetide_cli.main", "up", *arguments), words)


def test_a_busy_port_is_one_clear_line_and_starts_nothing(up, run, manifest):
    port = up(manifest("a")).url.rpartition(":")[2]
    check_refused(run("-m", "pagetide_cli.main", "up", f"--port={port}", manifest("b")), ["--port", port, "in use"])


def check_refused(one, words):
    assert one.process.wait(30) == 2
    assert one.text.count("\n") == 1, one.text
    assert one.text.startswith("pagetide up: ")
    for word in words:
        assert word in one.text
    assert one.left_over() == []


def test_a_log_folder_that_cannot_be_made_is_refused(run, manifest, tmp_path):
    (tmp_path / "taken").write_text("")
    one = run("-m", "pagetide_cli.main", "up", "--port=0", "--logs=taken", manifest("a"))
    assert one.process.wait(60) == 2
    assert one.text.startswith("pagetide up: --logs: 'taken': ")
    assert one.text.count("\n") == 1
