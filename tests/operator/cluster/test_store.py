"""What is known of the cluster, from events that come late, twice or not at all."""

from pagetide_operator.cluster.store import Store
from pagetide_spec.names import LABEL_PREFETCH, LABEL_SERVICE

KIND = "InferenceService"


def thing(name="llm", version="1", uid="u", label="llm"):
    labels = {LABEL_SERVICE: label} if label else {}
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": version, "labels": labels}
    return {"metadata": metadata | {"managedFields": ["big"]}}


def names(store):
    return {(c["kind"], c["metadata"]["name"]) for c in store.children(("ns", "llm"))}


def test_children_are_found_by_the_label_of_their_service():
    store = Store()
    assert store.put("Pod", thing("a")) == {("ns", "llm")}
    assert store.put("Pod", thing("b", label=None)) == set()
    assert store.put("Service", thing("a")) == {("ns", "llm")}
    assert names(store) == {("Pod", "a"), ("Service", "a")}


def test_a_late_event_does_not_undo_a_newer_state():
    store = Store()
    store.put(KIND, thing(version="9"))
    assert store.put(KIND, thing(version="10")) == {("ns", "llm")}
    store.put(KIND, thing(version="9"))
    assert store.resource(("ns", "llm"))["metadata"]["resourceVersion"] == "10"


def test_the_deletion_of_an_earlier_namesake_does_not_remove_the_new_one():
    store = Store()
    store.put(KIND, thing(uid="new"))
    store.remove(KIND, thing(uid="old"))
    assert store.resource(("ns", "llm")) is not None
    store.remove(KIND, thing(uid="new"))
    assert store.resource(("ns", "llm")) is None


def test_a_namesake_counts_even_with_a_smaller_version():
    store = Store()
    store.put(KIND, thing(uid="old", version="9"))
    store.put(KIND, thing(uid="new", version="3"))
    assert store.resource(("ns", "llm"))["metadata"]["uid"] == "new"


def test_a_list_tells_what_the_watches_missed():
    store = Store()
    store.put("Pod", thing("same"))
    store.put("Pod", thing("changed"))
    store.put("Pod", thing("gone", label="other"))
    found = [thing("same"), thing("changed", version="2"), thing("new", label="third")]
    assert store.replace("Pod", found, "9") == {("ns", "llm"), ("ns", "other"), ("ns", "third")}
    assert store.replace("Pod", found, "9") == set()
    assert names(store) == {("Pod", "same"), ("Pod", "changed")}


def test_a_child_that_is_labelled_away_concerns_both_services():
    store = Store()
    store.put("Service", thing("a"))
    assert store.put("Service", thing("a", version="2", label="other")) == {("ns", "llm"), ("ns", "other")}
    assert names(store) == set()


def test_a_list_older_than_what_a_watch_told_is_not_held_against_it():
    store = Store()
    store.put("Pod", thing("a", version="5"))
    assert store.replace("Pod", [thing("a", version="4")], "4") == set()


def test_the_late_answer_to_a_write_does_not_bring_back_what_was_deleted():
    store = Store()
    store.put("Pod", thing("a", version="5"))
    store.remove("Pod", thing("a", version="6"))
    store.put("Pod", thing("a", version="5"))
    assert names(store) == set()
    store.put("Pod", thing("a", version="7", uid="another"))
    assert names(store) == {("Pod", "a")}


def test_what_only_lost_its_label_can_come_back():
    store = Store()
    store.put("Pod", thing("a", version="5"))
    store.remove("Pod", thing("a", version="6", label=None))
    store.put("Pod", thing("a", version="7"))
    assert names(store) == {("Pod", "a")}


def test_a_list_does_not_remove_what_came_after_it():
    store = Store()
    store.put("Pod", thing("early", version="5"))
    store.put("Pod", thing("late", version="12"))
    assert store.replace("Pod", [], "9") == {("ns", "llm")}
    assert names(store) == {("Pod", "late")}


def test_what_takes_much_memory_and_says_nothing_is_not_kept():
    store = Store()
    store.put(KIND, thing())
    assert "managedFields" not in store.resource(("ns", "llm"))["metadata"]


def test_the_pod_that_fills_the_cache_is_kept_apart_from_replicas():
    store = Store()
    fetcher = thing("fetcher", label=None)
    fetcher["metadata"]["labels"] = {LABEL_PREFETCH: "llm"}
    assert store.put("Pod", fetcher) == {("ns", "llm")}
    store.put("Pod", thing("replica"))
    assert names(store) == {("Pod", "replica")}
    assert [p["metadata"]["name"] for p in store.fetchers(("ns", "llm"))] == ["fetcher"]
    store.remove("Pod", fetcher)
    assert store.fetchers(("ns", "llm")) == []


def test_of_a_service_that_is_gone_nothing_is_kept():
    store = Store()
    store.put(KIND, thing())
    store.put("Pod", thing("a"))
    store.remove("Pod", thing("a"))
    store.remove(KIND, thing())
    assert not store._children
    assert not store.resources()
