"""What a service says of itself, from what its children say."""

import pytest

from pagetide_operator.verdicts.failures import Failure
from pagetide_operator.verdicts.status import Children, Verdict, changes, invalid_status, service_status
from pagetide_spec.errors import ResourceError
from pagetide_spec.resource import parse

from .states import LATER, LOADING, NOW, conditions, deployment, ended, pod, status_of


def test_an_init_container_that_has_done_its_work_is_no_failure(service):
    made = pod(state=LOADING)
    made["status"]["initContainerStatuses"] = [
        {"name": "init", "ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    ]
    assert conditions(status_of(service(), deployment(ready=0), [made]))["Ready"][1] == "Starting"


def test_whether_load_decides_is_told_anew_when_that_changes(service):
    before = status_of(service(), deployment())
    assert conditions(before)["ScalingActive"][:2] == ("False", "FixedReplicas")
    after = status_of(service(status=before, autoscaling={"maxReplicas": 2}), deployment())
    assert conditions(after)["ScalingActive"][:2] == ("False", "NoDecision")


def test_what_could_not_be_applied_is_told(service):
    found = conditions(status_of(service(), deployment(), trouble=Failure("ApplyFailed", "no such field")))
    assert found["Ready"] == ("False", "ApplyFailed", "no such field; 1 of 1 replicas serve")


def test_an_invalid_resource_names_the_field_and_keeps_its_pods(service):
    resource = service(engine={"maxNumSeq": 1})
    with pytest.raises(ResourceError) as caught:
        parse(resource)
    found = invalid_status(caught.value, resource, deployment(ready=1), NOW)
    assert conditions(found)["Ready"] == (
        "False",
        "InvalidSpec",
        "spec.engine.maxNumSeq: 1: no such setting; did you mean maxNumSeqs?; the pods of the last valid version stay",
    )
    assert found["readyReplicas"] == 1


def test_counts_selector_and_address(service):
    found = status_of(service(replicas=3), deployment(ready=2, replicas=3))
    assert (found["replicas"], found["readyReplicas"], found["desiredReplicas"]) == (3, 2, 3)
    assert found["url"] == "http://llm.ns.svc"
    assert "pagetide.dev/inferenceservice=llm" in found["selector"]
    assert found["observedGeneration"] == 2


def test_the_same_state_later_is_the_same_status(service):
    before = status_of(service(), deployment())
    after = status_of(service(status=before), deployment(), now=LATER)
    assert changes(before, after) == {}


def test_a_condition_keeps_its_time_until_its_status_changes(service):
    def since(status, **more):
        found = status_of(service(status=status), now=LATER, **more)
        return next(c["lastTransitionTime"] for c in found["conditions"] if c["type"] == "Ready")

    before = status_of(service(), deployment(ready=0))
    assert since(before, live=deployment(ready=0), pods=[ended(3)]) == NOW
    assert since(before, live=deployment(ready=1)) == LATER


def test_conditions_of_others_stay(service):
    other = {"type": "Audited", "status": "True", "reason": "x", "message": "", "lastTransitionTime": NOW}
    assert other in status_of(service(status={"conditions": [other]}))["conditions"]


def test_the_autoscalers_conditions_stay_until_it_says_something_new(service):
    told = [Verdict("ScalingActive", True, "Measured", "m"), Verdict("ScalingLimited", True, "MaxReplicas", "m")]
    scaled = {"autoscaling": {"maxReplicas": 2}}
    live = Children(deployment(), [])
    before = service_status(parse(service(**scaled)), {}, live, 1, None, NOW, told)
    reasons = {c["type"]: c["reason"] for c in before["conditions"]}
    assert (reasons["ScalingActive"], reasons["ScalingLimited"]) == ("Measured", "MaxReplicas")
    assert status_of(service(status=before, **scaled), deployment())["conditions"] == before["conditions"]
    fixed = {c["type"]: c["reason"] for c in status_of(service(status=before), deployment())["conditions"]}
    assert fixed["ScalingActive"] == "FixedReplicas"
    assert "ScalingLimited" not in fixed


def test_only_what_changed_is_written(service):
    before = status_of(service(), deployment(ready=0))
    after = status_of(service(status=before), deployment(ready=1), now=LATER)
    assert set(changes(before, after)) == {"readyReplicas", "conditions"}
