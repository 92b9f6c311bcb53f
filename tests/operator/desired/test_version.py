"""Which pods stay as they are, and which are recreated."""

import json

import pytest

from pagetide_operator.desired.children import Platform
from pagetide_operator.desired.pod import pod_template
from pagetide_spec.names import ANNOTATION_TEMPLATE_HASH
from pagetide_spec.resource import parse

from .manifests import made, pod_of

NEWER = Platform(image="pagetide/server:2")


@pytest.mark.parametrize(
    ("change", "image"),
    [
        pytest.param({}, "pagetide/server:1", id="an unchanged service keeps its pods"),
        pytest.param({"replicas": 5}, "pagetide/server:1", id="scaling keeps them"),
        pytest.param({"rollout": {"maxSurge": 2}}, "pagetide/server:1", id="another speed of rollouts keeps them"),
        pytest.param({"drainSeconds": 60}, "pagetide/server:1", id="a default written out keeps them"),
        pytest.param({"engine": {"maxNumSeqs": 2}}, "pagetide/server:2", id="a changed setting gives new ones"),
    ],
)
def test_pods_after_an_upgrade_of_the_operator(service, change, image):
    live = made(service())["Deployment", "llm"]
    found = pod_of(service(**change), live=live, platform=NEWER)
    assert found["containers"][0]["image"] == image


def test_bookkeeping_that_was_lost_or_spoilt_is_made_anew(service):
    live = json.loads(json.dumps(made(service())["Deployment", "llm"]))
    annotations = live["metadata"]["annotations"]
    edited = annotations["pagetide.dev/template"].replace("pagetide/server:1", "evil/server:1")
    for damage in ({}, *({**annotations, "pagetide.dev/template": text} for text in ("{", "[]", "{}", "1", edited))):
        live["metadata"]["annotations"] = damage
        assert pod_of(service(), live=live, platform=NEWER)["containers"][0]["image"] == "pagetide/server:2"


def test_the_hash_in_the_template_tells_templates_apart(service):
    def hash_of(**spec):
        return pod_template(parse(service(**spec)), "i")["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH]

    assert hash_of() == hash_of(replicas=3)
    assert hash_of() != hash_of(engine={"maxNumSeqs": 2})
    assert hash_of() != hash_of(template={"annotations": {"a": "b"}})
