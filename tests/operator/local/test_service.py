"""An InferenceService as this machine runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagetide_operator.local.service import localize, replica_command, with_log_format
from pagetide_spec.errors import SettingError

from .resources import service


def test_a_claim_is_a_folder_under_the_volumes(tmp_path):
    (tmp_path / "models" / "deep").mkdir(parents=True)
    (tmp_path / "models" / "deep" / "x.gguf").touch()
    found = localize(service(model={"uri": "pvc://models/deep/x.gguf"}), tmp_path)
    assert found.model == str(tmp_path / "models" / "deep" / "x.gguf")
    assert localize(service(model={"uri": "pvc://models"}), tmp_path).model == str(tmp_path / "models")
    with pytest.raises(SettingError, match=r"spec\.model\.uri.*nothing at"):
        localize(service(model={"uri": "pvc://models/y.gguf"}), tmp_path)


def test_a_chat_template_is_looked_for_before_anything_is_started(tmp_path):
    path = tmp_path / "chat.jinja"
    resource = service(engine={"chatTemplate": str(path)})
    with pytest.raises(SettingError, match=r"^spec\.engine\.chatTemplate: .*chat\.jinja.*No such file"):
        localize(resource, tmp_path)
    path.write_text("{{ messages }}")
    assert localize(resource, tmp_path).settings["chat_template"] == str(path)
    assert localize(service(engine={"chatTemplate": "{{ 1 }}"}), tmp_path)


def test_the_command_of_a_replica():
    found = localize(
        service(
            model={"uri": "hf://org/name", "revision": "v1", "servedName": "n"},
            engine={"maxNumSeqs": 8, "enablePrefixCaching": False},
            drainSeconds=7,
        ),
        Path("volumes"),
    )
    command = replica_command(found, 1234)
    assert command[:4] == [sys.executable, "-m", "pagetide_server", "org/name"]
    assert set(command[4:]) == {
        "--served-model-name=n",
        "--revision=v1",
        "--max-num-seqs=8",
        "--enable-prefix-caching=false",
        "--shutdown-timeout-s=7.0",
        "--host=127.0.0.1",
        "--port=1234",
    }


@pytest.mark.parametrize(
    ("form", "engine", "flags"),
    [
        pytest.param("json", {}, ["--log-format=json"], id="as `up` is asked"),
        pytest.param("json", {"logFormat": "text"}, ["--log-format=text"], id="the resource's own word wins"),
        pytest.param("text", {}, [], id="unasked, the server's own default"),
    ],
)
def test_the_form_of_a_replicas_log(form, engine, flags):
    command = replica_command(with_log_format(localize(service(engine=engine), Path("volumes")), form), 1)
    assert [flag for flag in command if flag.startswith("--log-format")] == flags


def test_what_has_no_effect_here_is_said():
    found = localize(
        service(
            replicas=3,
            apiKeySecretRef={"name": "s", "key": "k"},
            resources={"limits": {"nvidia.com/gpu": 1}},
            template={
                "nodeSelector": {"a": "b"},
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
            },
        ),
        Path("volumes"),
    )
    assert found.replicas == 3
    assert found.environment == {"A": "1"}
    for word in ("apiKeySecretRef", "resources", "nodeSelector", "env[1].valueFrom (B)"):
        assert any(word in note for note in found.notes), word


def test_autoscaling_starts_at_least_one():
    scaling = {"minReplicas": 0, "maxReplicas": 3}
    assert localize(service(autoscaling=scaling), Path("volumes")).replicas == 1
