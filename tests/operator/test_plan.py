"""From what is to what should be: actions, and none where nothing differs."""

import copy

import pytest

from pagetide_operator.plan import Apply, Delete, covers, plan, settlement
from pagetide_spec.names import FIELD_MANAGER, LABEL_MANAGED_BY, LABEL_SERVICE


def owner(uid="uid-1"):
    return {"kind": "InferenceService", "uid": uid, "controller": True}


def wanted(name="llm", **spec):
    metadata = {"name": name, "annotations": {"stamp": "1"}, "ownerReferences": [owner()]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec or {"ports": [{"port": 80}]}}


def labelled(thing, service="llm"):
    thing["metadata"]["labels"] = {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_SERVICE: service}
    return thing


def live(name="llm", owners=None, **more):
    out = copy.deepcopy(wanted(name))
    out["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "5", "ownerReferences": owners or [owner()]}
    out["metadata"] |= more.pop("metadata", {})
    out["spec"] |= {"clusterIP": "10.0.0.1", **more}
    return out


@pytest.mark.parametrize(
    ("desired", "found", "expected"),
    [
        pytest.param([wanted()], [], [Apply(wanted(), is_new=True)], id="what is missing is made"),
        pytest.param([wanted()], [live()], [], id="what is there with more in it is left alone"),
        pytest.param([wanted(a=1)], [live()], [Apply(wanted(a=1), is_new=False)], id="what lacks a field is applied"),
        pytest.param(
            [wanted()],
            [live(metadata={"annotations": {"stamp": "0"}})],
            [Apply(wanted(), is_new=False)],
            id="what was applied from something else is applied",
        ),
        pytest.param(
            [wanted()], [live(ports=[{"port": 81}])], [Apply(wanted(), is_new=False)], id="what drifted is repaired"
        ),
        pytest.param(
            [],
            [live("old")],
            [Delete("v1", "Service", "old", "uid-of-old")],
            id="what is no longer wanted is deleted",
        ),
        pytest.param([], [live("old", metadata={"deletionTimestamp": "t"})], [], id="unless it is going already"),
        pytest.param([wanted()], [live(metadata={"deletionTimestamp": "t"})], [], id="what is going is waited for"),
        pytest.param(
            [wanted()],
            [live(owners=[owner("uid-0")])],
            [Delete("v1", "Service", "llm", "uid-of-llm")],
            id="a child of an earlier service of this name makes room",
        ),
        pytest.param([wanted()], [live(owners=[{"kind": "Other", "uid": "x"}])], [], id="another's is not touched"),
        pytest.param(
            [labelled(wanted())],
            [labelled(live(metadata={"ownerReferences": []}))],
            [Apply(labelled(wanted()), is_new=False)],
            id="a child that outlived its service is taken over by the next of that name",
        ),
        pytest.param(
            [labelled(wanted())],
            [labelled(live(owners=[{"kind": "Other", "uid": "x", "controller": True}]))],
            [],
            id="but not one that somebody else controls",
        ),
        pytest.param(
            [labelled(wanted())],
            [labelled(live(metadata={"ownerReferences": []}), "other")],
            [],
            id="nor one of another service",
        ),
        pytest.param([], [{"kind": "Pod", "metadata": {"name": "p"}}], [], id="pods are not ours"),
    ],
)
def test_plan(desired, found, expected):
    assert list(plan(desired, found, {}, "uid-1").actions) == expected


def test_a_name_that_somebody_else_has_is_told():
    found = plan([wanted()], [live(owners=[{"kind": "Other", "uid": "x"}])], {}, "uid-1")
    assert found.taken == (("Service", "llm"),)


def test_what_the_server_writes_in_another_way_is_applied_once():
    manifest, found = wanted(cpu="1000m"), live(cpu="1")
    before = plan([manifest], [found], {}, "uid-1")
    settled = {("Service", "llm"): settlement(manifest, found)}
    after = plan([manifest], [found], settled, "uid-1")
    drifted = plan([manifest], [live(cpu="2")], settled, "uid-1")
    assert [len(p.actions) for p in (before, after, drifted)] == [1, 0, 1]


def test_status_and_versions_do_not_unsettle():
    manifest, found = wanted(cpu="1000m"), live(cpu="1")
    settled = {("Service", "llm"): settlement(manifest, found)}
    later = {**found, "status": {"replicas": 1}, "metadata": {**found["metadata"], "resourceVersion": "9"}}
    assert not plan([manifest], [later], settled, "uid-1").actions


@pytest.mark.parametrize(
    ("found", "asked", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, True, id="more fields"),
        pytest.param({"a": 1}, {"a": 1, "b": 2}, False, id="fewer fields"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, False, id="more entries of a list"),
        pytest.param({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]}, True, id="more fields of an entry"),
        pytest.param({"a": [2, 1]}, {"a": [1, 2]}, False, id="another order"),
        pytest.param({"a": "1"}, {"a": 1}, False, id="another type"),
        pytest.param({"a": None}, {"a": {}}, False, id="nothing for a map"),
    ],
)
def test_covers(found, asked, expected):
    assert covers(found, asked) is expected
