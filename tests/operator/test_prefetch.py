"""The Job that fills the model cache: when there is one, what is in it, and what waits for it."""

import copy

import pytest

from pagetide_operator.decide import Seen, plan_for, status_changes
from pagetide_operator.desired.children import Platform, key_of
from pagetide_operator.plan import Apply, Delete
from pagetide_operator.prefetch import job_for
from pagetide_spec.names import (
    ANNOTATION_FINGERPRINT,
    ANNOTATION_PREFETCHED,
    ANNOTATION_TEMPLATE,
    COMPONENT_PREFETCH,
    LABEL_COMPONENT,
    LABEL_PREFETCH,
    LABEL_SERVICE,
    selector_labels,
)
from pagetide_spec.resource import parse

PLATFORM = Platform(image="pagetide/server:1")
NEWER = Platform(image="pagetide/server:2")
CACHE = {"cache": {"pvc": "models"}}


class World:
    """The children of one service as an API server would have them, without a cluster."""

    def __init__(self, resource, platform=PLATFORM):
        self.resource, self.platform, self.objects = resource, platform, {}

    def look(self):
        """One pass of the operator; what it did: (verb, kind)."""
        seen = self.seen()
        done = []
        for action in plan_for(parse(self.resource), seen, self.platform, {}, 0.0).actions:
            if isinstance(action, Delete):
                del self.objects[action.kind, action.name]
                done.append(("delete", action.kind))
            elif isinstance(action, Apply):
                made = copy.deepcopy(action.manifest)
                made["metadata"]["uid"] = f"uid of {key_of(made)}"
                before = self.objects.get(key_of(made), {})
                self.objects[key_of(made)] = made | ({"status": before["status"]} if "status" in before else {})
                done.append(("apply", made["kind"]))
        return done

    def seen(self):
        fetchers = self.of("Pod")
        return Seen(self.resource, [o for o in self.objects.values() if o not in fetchers], fetchers=fetchers)

    def of(self, kind):
        return [o for (k, _), o in self.objects.items() if k == kind]

    def change(self, **spec):
        self.resource = {**self.resource, "spec": {**self.resource["spec"], **spec}}

    def finish(self, condition="Complete"):
        (job,) = self.of("Job")
        job["status"] = {"conditions": [{"type": condition, "status": "True"}]}

    def add_pod(self, waiting=None, terminated=None):
        container = {"name": "server", "image": "i", "state": {"waiting": waiting or {}}}
        if terminated:
            container["lastState"] = {"terminated": terminated}
        metadata = {"name": "p", "uid": "p", "labels": {LABEL_PREFETCH: "llm"}}
        pod = {"kind": "Pod", "metadata": metadata, "status": {"containerStatuses": [container]}}
        self.objects["Pod", "p"] = pod

    def condition(self, kind):
        found = status_changes(self.seen(), parse(self.resource), None, 0.0)["conditions"]
        return next((c["status"], c["reason"], c["message"]) for c in found if c["type"] == kind)


def arguments(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        pytest.param({}, 0, id="no cache"),
        pytest.param(CACHE, 1, id="a hub model in a cache"),
        pytest.param({"cache": {"size": "5Gi"}}, 1, id="in a cache of its own"),
        pytest.param({"cache": {"pvc": "models", "prefetch": False}}, 0, id="a user who wants none"),
        pytest.param({**CACHE, "model": {"uri": "pvc://claim/model"}}, 0, id="a model of a claim"),
        pytest.param({**CACHE, "model": {"uri": "file:///srv/model"}}, 0, id="a model of the image"),
    ],
)
def test_there_is_a_job_where_something_is_to_be_fetched(service, spec, count):
    world = World(service(**spec))
    world.look()
    assert len(world.of("Job")) == count
    assert len(world.of("Deployment")) == 1 - count


def test_replicas_are_made_when_the_job_is_done_and_it_never_comes_back(service):
    world = World(service(**CACHE))
    assert ("apply", "Job") in world.look()
    assert world.condition("Ready") == ("False", "Prefetching", "the model is being fetched into the cache")
    assert world.condition("Progressing")[:2] == ("True", "Prefetching")
    assert world.look() == []
    world.finish()
    assert world.look() == [("apply", "Deployment")]
    assert world.look() == [("delete", "Job")]
    assert world.look() == []
    world.change(engine={"maxNumSeqs": 4})
    assert world.look() == [("apply", "Deployment")]
    assert "--max-num-seqs=4" in arguments(*world.of("Deployment"))
    assert world.look() == []


def test_old_replicas_stay_as_they_are_until_the_new_model_is_there(service):
    world = World(service(**CACHE))
    world.look()
    world.finish()
    world.look()
    world.look()
    (old,) = world.of("Deployment")
    old["status"] = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    world.change(model={"uri": "hf://org/other"}, engine={"maxNumSeqs": 4}, replicas=3)
    assert {("apply", "Job"), ("apply", "Deployment")} == set(world.look())
    (waiting,) = world.of("Deployment")
    assert waiting["spec"]["template"] == old["spec"]["template"]
    assert waiting["spec"]["replicas"] == 3  # scaling does not wait
    world.change(replicas=1)
    world.look()
    assert world.condition("Ready")[:2] == ("True", "Ready")
    assert world.condition("Progressing")[:2] == ("True", "Prefetching")
    world.finish()
    world.look()
    assert arguments(*world.of("Deployment"))[0] == "org/other"


def test_an_upgrade_of_the_operator_fetches_nothing_anew(service):
    world = World(service(**CACHE))
    world.look()
    world.finish()
    world.look()
    world.look()
    # As an operator that knew of no Jobs has left it.
    (deployment,) = world.of("Deployment")
    del deployment["metadata"]["annotations"][ANNOTATION_PREFETCHED]
    world.platform = NEWER
    assert world.look() == [("apply", "Deployment")]  # the note, and nothing about the pods
    (after,) = world.of("Deployment")
    assert after["spec"]["template"] == deployment["spec"]["template"]
    assert world.look() == []


@pytest.mark.parametrize("lost", [ANNOTATION_FINGERPRINT, ANNOTATION_PREFETCHED, ANNOTATION_TEMPLATE])
def test_no_lost_note_takes_the_replicas_away(service, lost):
    world = World(service(**CACHE))
    world.look()
    world.finish()
    world.look()
    world.change(model={"uri": "hf://org/other"})
    del world.of("Deployment")[0]["metadata"]["annotations"][lost]
    for _ in range(3):
        assert ("delete", "Deployment") not in world.look()
    (job,) = world.of("Job") or [None]
    if job is not None:
        world.finish()
        world.look()
    assert arguments(*world.of("Deployment"))[0] == "org/other"


def test_where_the_notes_are_lost_replicas_do_not_wait(service):
    world = World(service(**CACHE))
    world.look()
    world.finish()
    world.look()
    (deployment,) = world.of("Deployment")
    deployment["metadata"]["annotations"] = {}
    world.look()
    assert ANNOTATION_TEMPLATE in world.of("Deployment")[0]["metadata"]["annotations"]
    world.look()
    assert world.of("Job") == []


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({"replicas": 3}, True, id="the number of replicas"),
        pytest.param({"engine": {"maxNumSeqs": 4}}, True, id="a setting of the server"),
        pytest.param({"drainSeconds": 5}, True, id="how long it drains"),
        pytest.param({"model": {"uri": "hf://org/name", "revision": "v2"}}, False, id="another revision"),
        pytest.param({"engine": {"tokenizer": "org/tokenizer"}}, False, id="another tokenizer"),
        pytest.param({"template": {"env": [{"name": "HF_ENDPOINT", "value": "x"}]}}, False, id="another hub"),
        pytest.param({"image": "mine"}, False, id="another image"),
    ],
)
def test_the_job_is_another_where_it_would_do_something_else(service, change, is_same):
    one, other = (
        job_for(parse(service(**CACHE, **c)), PLATFORM, is_placed=True)["metadata"]["name"] for c in ({}, change)
    )
    assert (one == other) is is_same


def test_the_pod_is_a_servers_without_what_serving_needs(service):
    spec = {
        "model": {"uri": "hf://org/name", "revision": "v2", "tokenSecretRef": {"name": "hub"}},
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "80Gi"}},
        "template": {"nodeSelector": {"a": "b"}, "containers": [{"name": "sidecar", "image": "s"}]},
    }
    made = job_for(parse(service(**CACHE, **spec)), PLATFORM, is_placed=True)["spec"]["template"]
    (container,) = made["spec"]["containers"]
    assert container["args"] == ["org/name", "--revision=v2", "--download-only"]
    assert {e["name"] for e in container["env"]} >= {"HF_TOKEN", "HF_HOME"}
    assert not [k for k in container if "Probe" in k or k in ("ports", "lifecycle")]
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert made["spec"]["nodeSelector"] == {"a": "b"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    labels = made["metadata"]["labels"]
    assert (labels[LABEL_COMPONENT], labels[LABEL_PREFETCH]) == (COMPONENT_PREFETCH, "llm")
    assert not selector_labels("llm").items() <= labels.items()
    assert LABEL_SERVICE not in labels  # a gateway would take it for a replica


def test_it_takes_the_node_where_a_claim_of_one_node_is_or_will_be(service):
    spec = {"cache": {"size": "5Gi"}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    unbound, bound = (job_for(parse(service(**spec)), PLATFORM, is_placed=p) for p in (False, True))
    assert unbound["metadata"]["name"] == bound["metadata"]["name"]
    resources = [j["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for j in (unbound, bound)]
    assert ["nvidia.com/gpu" in r for r in resources] == [True, False]
    affinity = bound["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"].items() <= bound["spec"]["template"]["metadata"]["labels"].items()


def test_a_name_of_any_length_gives_a_name_that_a_label_can_hold(service):
    names = {job_for(parse(service("a" * 52 + c, **CACHE)), PLATFORM, is_placed=True)["metadata"]["name"] for c in "xy"}
    assert len(names) == 2
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            {"terminated": {"exitCode": 2, "message": "x\nno such model"}},
            ("PrefetchFailed", "fetching the model: container server ended with exit code 2: no such model"),
            id="a model that is not there",
        ),
        pytest.param(
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}},
            ("CreateContainerConfigError", 'fetching the model: container server: secret "hub" not found'),
            id="a Secret that is missing",
        ),
        pytest.param(
            {"waiting": {"reason": "ImagePullBackOff"}},
            ("ImagePullBackOff", "fetching the model: image 'i' cannot be pulled"),
            id="an image that is missing",
        ),
        pytest.param(
            {"terminated": {"exitCode": 0}},
            ("Prefetching", "the model is being fetched into the cache"),
            id="the end of a pod that did its work",
        ),
    ],
)
def test_what_keeps_the_model_from_coming_is_told(service, pod, expected):
    world = World(service(**CACHE))
    world.look()
    world.add_pod(**pod)
    assert world.condition("Ready") == ("False", *expected)


def test_a_job_that_gave_up_says_how_to_go_on(service):
    world = World(service(**CACHE))
    world.look()
    world.finish("Failed")
    assert world.condition("Ready")[1] == "PrefetchFailed"
    assert "delete it for another try" in world.condition("Ready")[2]
