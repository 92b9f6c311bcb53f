"""A parsed InferenceService in one line."""

from __future__ import annotations

from pagetide_spec.resource import parse


def service(**spec):
    return parse(
        {
            "apiVersion": "pagetide.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "a"},
            "spec": {"model": {"uri": "hf://org/name"}, **spec},
        }
    )
