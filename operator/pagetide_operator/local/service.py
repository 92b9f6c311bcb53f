"""An InferenceService as this machine runs it: which model on disk, how many processes, which command."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagetide_spec.chat_template import template_text
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import to_arguments
from pagetide_spec.inference_service import Autoscaling, InferenceService, ModelSource

from ..desired.pod import server_settings, shutdown_seconds


@dataclasses.dataclass(frozen=True)
class LocalService:
    """What one resource means here.

    Attributes:
        model_name: what clients give as `model`.
        uri: of the model, as in the resource.
        model: the server's MODEL argument.
        replicas: how many at the begin, as `replicas_field` of the resource says.
        autoscaling: how their number follows the load; None where it does not.
        leave_seconds: how long one that leaves waits for its streams before it is asked to end.
        settings: EngineConfig field names to values.
        environment: variables beside those of this process.
        notes: parts of the resource that have no effect here.
    """

    name: str
    namespace: str
    model_name: str
    uri: str
    model: str
    replicas: int
    replicas_field: str
    drain_seconds: float
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    autoscaling: Autoscaling | None = None
    leave_seconds: float = 60.0


def localize(service: InferenceService, volumes: Path) -> LocalService:
    """The service on this machine; `pvc://claim/path` lies under `volumes`.

    Raises:
        SettingError: the model or the chat template is not there, or a variable has no name.
    """
    _check_template(service)
    model = service.model
    environment, left_out = _environment(service.template)
    replicas, field = _replicas(service)
    return LocalService(
        name=service.name,
        namespace=service.namespace,
        model_name=model.served_name,
        uri=model.uri,
        model=model_argument(model, volumes),
        replicas=replicas,
        replicas_field=field,
        drain_seconds=shutdown_seconds(service),
        settings=server_settings(service),
        environment=environment,
        notes=tuple(_notes(service)) + left_out,
        autoscaling=service.autoscaling,
        leave_seconds=float(service.drain_seconds),
    )


def with_log_format(service: LocalService, form: str) -> LocalService:
    """The service with logs of this form, where the resource names none; "text" leaves it to the server."""
    if form == "text":
        return service
    return dataclasses.replace(service, settings={"log_format": form, **service.settings})


def model_argument(model: ModelSource, volumes: Path) -> str:
    """The server's MODEL argument: a hub id or an existing path.

    Raises:
        SettingError: there is nothing at the path.
    """
    if model.scheme == "hf":
        return model.path
    path = Path(model.path)
    if model.scheme == "pvc":
        path = volumes / (model.claim or "") / model.path
    path = path.absolute()
    if not path.exists():
        raise SettingError("spec.model.uri", model.uri, f"nothing at {path}")
    return str(path)


def replica_command(service: LocalService, port: int) -> list[str]:
    """Command line of one replica that listens on a loopback port."""
    settings = {**service.settings, "host": "127.0.0.1", "port": port}
    return [sys.executable, "-m", "pagetide_server", service.model, *to_arguments(settings)]


def _replicas(service: InferenceService) -> tuple[int, str]:
    """How many replicas, and the field that says so."""
    if service.autoscaling is not None:
        return max(1, service.autoscaling.min_replicas), "spec.autoscaling.minReplicas"
    return service.replicas or 0, "spec.replicas"


def _environment(template: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Plain variables of `spec.template.env`, and a note on each other part of the template."""
    variables: dict[str, str] = {}
    notes = [f"spec.template.{key}" for key in template if key != "env"]
    for index, entry in enumerate(template.get("env", [])):
        name = entry.get("name")
        if not isinstance(name, str) or not name or "=" in name:
            raise SettingError(f"spec.template.env[{index}].name", name, "must be the name of a variable")
        if "valueFrom" in entry:
            notes.append(f"spec.template.env[{index}].valueFrom ({name})")
        else:
            variables[name] = str(entry.get("value", ""))
    return variables, tuple(notes)


def _check_template(service: InferenceService) -> None:
    """Each server reads the template itself; a missing one is to be known before the first is started."""
    setting = service.engine.get("chat_template")
    if setting is not None:
        try:
            template_text(setting)
        except SettingError as error:
            raise error.renamed("spec.engine.chatTemplate") from error


def _notes(service: InferenceService) -> list[str]:
    present = {
        "spec.apiKeySecretRef": service.api_key_secret,
        "spec.model.tokenSecretRef (set HF_TOKEN instead)": service.model.token_secret,
        "spec.resources": service.resources,
        "spec.image": service.image,
        "spec.cache": service.cache,
        "spec.inferencePool": service.endpoint_picker,
    }
    return [name for name, value in present.items() if value]
