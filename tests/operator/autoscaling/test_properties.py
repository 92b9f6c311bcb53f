"""What holds of every decision, whatever was measured."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide_operator.autoscaling.autoscaler import Autoscaler, Fleet, Replica
from pagetide_operator.autoscaling.policy import remembered
from pagetide_operator.autoscaling.samples import Sample
from pagetide_spec.resource import parse

NOW = 1e6
samples = st.builds(
    Sample,
    at=st.just(NOW),
    running=st.integers(0, 20),
    waiting=st.integers(0, 500),
    oldest_waiting=st.floats(0, 100),
    max_seqs=st.integers(1, 20),
    batch_utilization=st.floats(0, 1),
    kv_capacity=st.integers(1, 10_000),
    kv_used=st.integers(0, 10_000),
    kv_cached=st.integers(0, 10_000),
    prompt_tokens=st.integers(0, 10**6),
    query_tokens=st.integers(0, 10**6),
    hit_tokens=st.integers(0, 10**6),
    prefills=st.integers(0, 1000),
)
# (ready, draining, its scrapes; none: it is silent)
replicas = st.tuples(st.booleans(), st.booleans(), st.lists(samples, max_size=6))


@st.composite
def bounds(draw):
    least = draw(st.integers(0, 4))
    most = draw(st.integers(max(1, least), 8))
    return {"minReplicas": least, "maxReplicas": most, "idleSeconds": draw(st.integers(1, 60))}


def scaled(autoscaling):
    head = {"apiVersion": "pagetide.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "llm"}}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    spec = {"model": {"uri": "hf://org/name"}, "autoscaling": {**autoscaling, "behavior": behavior}}
    return parse({**head, "spec": spec}).autoscaling


@given(autoscaling=bounds(), fleet=st.lists(replicas, max_size=8), wake=st.none() | st.floats(NOW - 99, NOW + 99))
@settings(max_examples=200, deadline=None)
def test_one_leaves_at_a_time_within_the_bounds_and_never_one_that_is_busy(autoscaling, fleet, wake):
    scaling = scaled(autoscaling)
    desired = min(max(len(fleet), scaling.min_replicas), scaling.max_replicas)
    brain = Autoscaler(remembered((), desired, NOW - 100))
    made = []
    for number, (is_ready, is_draining, scrapes) in enumerate(fleet):
        name = f"r{number}"
        made.append(Replica(name, NOW - 90 if is_ready else None, NOW - 5 if is_draining else None))
        for age, sample in enumerate(reversed(scrapes)):
            brain.saw(name, dataclasses.replace(sample, at=NOW - 5 * (len(scrapes) - 1 - age)))
    step = brain.step(Fleet(desired, made, wake), scaling, 60, NOW)
    assert scaling.min_replicas <= step.desired <= scaling.max_replicas
    assert step.desired >= desired - 1
    if step.desired == 0 < desired:
        assert scaling.min_replicas == 0
    if step.remove is not None:
        number = int(step.remove[1:])
        is_ready, is_draining, scrapes = fleet[number]
        assert step.desired == desired - 1
        assert not is_ready or (is_draining and scrapes and not scrapes[0].running and not scrapes[0].waiting)
    assert step.drain is None or made[int(step.drain[1:])].ready_at is not None
    assert not {step.drain, step.remove} & set(step.undrain)
