"""What a Deployment's pods are made from: kept as it is, recreated, or waiting for a model to be fetched. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pagetide_spec.inference_service import InferenceService
from pagetide_spec.names import (
    ANNOTATION_FINGERPRINT,
    ANNOTATION_PREFETCHED,
    ANNOTATION_TEMPLATE,
    ANNOTATION_TEMPLATE_HASH,
)

from .pod import Manifest, digest, pod_template


@dataclasses.dataclass(frozen=True)
class Fetching:
    """How far the model is on its way into the cache.

    Attributes:
        key: what the cache is to hold, hashed; None where nothing is fetched beforehand.
        is_done: pods may be made for it.
        job: the Job that fetches it, as long as it is wanted.
    """

    key: str | None = None
    is_done: bool = True
    job: Manifest | None = None


NOTHING_TO_FETCH = Fetching()


@dataclasses.dataclass(frozen=True)
class Version:
    """What the pods of a Deployment are made from; `fetched`: what was put into the cache for them."""

    fingerprint: str
    template: Manifest
    fetched: str | None


def version_of(
    service: InferenceService, image: str, live: Mapping[str, Any] | None, fetching: Fetching
) -> Version | None:
    """What the Deployment's pods are to be made from; None: they must wait."""
    annotations = annotations_of(live)
    if fetching.is_done:
        template = kept_template(service, live) or pod_template(service, image)
        return Version(service.fingerprint, template, fetching.key)
    template_before = noted_template(live)
    if template_before is None:
        return None
    fingerprint = annotations.get(ANNOTATION_FINGERPRINT, "")
    return Version(fingerprint, template_before, annotations.get(ANNOTATION_PREFETCHED))


def kept_template(service: InferenceService, live: Mapping[str, Any] | None) -> Manifest | None:
    """The pod template that the live Deployment was made with, if it was made for this very spec.

    What another client has edited does not have the hash that it carries, and is recreated.
    """
    annotations = annotations_of(live)
    return noted_template(live) if annotations.get(ANNOTATION_FINGERPRINT) == service.fingerprint else None


def noted_template(live: Mapping[str, Any] | None) -> Manifest | None:
    """The pod template that the live Deployment was made with, if it is still known."""
    annotations = annotations_of(live)
    if ANNOTATION_TEMPLATE not in annotations:
        return None
    try:
        template: Manifest = json.loads(annotations[ANNOTATION_TEMPLATE])
        noted = template["metadata"]["annotations"].pop(ANNOTATION_TEMPLATE_HASH)
        is_ours = noted == digest(template)
    except (json.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None
    template["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH] = noted
    return template if is_ours else None


def annotations_of(live: Mapping[str, Any] | None) -> Mapping[str, str]:
    """The annotations of an object that may be absent."""
    return (live or {}).get("metadata", {}).get("annotations") or {}
