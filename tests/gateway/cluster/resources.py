"""InferenceServices and pods as an API server hands them out."""

from __future__ import annotations

from pagetide_spec.names import LABEL_SERVICE


def service(name: str, namespace: str = "ns", served: str | None = None, **spec) -> dict:
    model = {"uri": "hf://a/b", **({"servedName": served} if served else {})}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"model": model, **spec}}


def pod(name: str, of: str, namespace: str = "ns", ip: str = "10.0.0.1", **more) -> dict:
    ready = more.pop("ready", "True")
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL_SERVICE: of}, **more.pop("metadata", {})}
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": metadata, "status": {"podIP": ip, "phase": "Running", "conditions": conditions, **more}}
