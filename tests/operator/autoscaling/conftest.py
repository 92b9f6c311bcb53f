"""Settings of scaling as a resource gives them, and loads of replicas in one line."""

import math

import pytest

from pagetide_operator.autoscaling.samples import Sample
from pagetide_operator.autoscaling.windows import Load
from pagetide_spec.resource import parse


@pytest.fixture
def scaling():
    """`scaling(minReplicas=..., targets=..., ...)`: spec.autoscaling with its defaults; at most 10 replicas."""

    def make(**fields):
        spec = {"model": {"uri": "hf://org/name"}, "autoscaling": {"maxReplicas": 10, **fields}}
        head = {"apiVersion": "pagetide.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "llm"}}
        return parse({**head, "spec": spec}).autoscaling

    return make


@pytest.fixture
def load():
    """One replica with 10 places and 1,000 tokens of KV cache."""
    return lambda **fields: Load(**{"capacity": 10, "kv_capacity": 1000, **fields})


@pytest.fixture
def queued():
    """A histogram of requests that waited so long: buckets at 0.5, 1, 2, 4 s."""

    def make(*seconds):
        return tuple((b, float(sum(s <= b for s in seconds))) for b in (0.5, 1.0, 2.0, 4.0, math.inf))

    return make


@pytest.fixture
def sample():
    """A scrape of a replica with 10 places and 1,000 tokens of KV cache."""
    return lambda at, **fields: Sample(at=at, **{"max_seqs": 10, "kv_capacity": 1000, **fields})
