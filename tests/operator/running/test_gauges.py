"""What the operator exports of its services, and that its metrics are those of the contract."""

import pytest
from prometheus_client import CollectorRegistry

from pagetide_operator.cluster.store import Store
from pagetide_operator.running.gauges import StoreGauges
from pagetide_operator.telemetry import Telemetry
from pagetide_spec.metrics import OPERATOR_METRICS, PREFIX
from pagetide_spec.names import ANNOTATION_DRAINING, KIND, LABEL_SERVICE


def child(kind, name, **fields):
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": {LABEL_SERVICE: "llm"}}
    return {"kind": kind, "metadata": {**metadata, **fields.pop("metadata", {})}, **fields}


def pod(name, ready=True, phase="Running", **metadata):
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return child("Pod", name, metadata=metadata, status=status)


@pytest.fixture
def told(service):
    store, now = Store(), [100.0]
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": "CrashLoopBackOff"}]}
    store.put(KIND, service(status=status))
    heard = {"Pod": 90.0}
    registry = CollectorRegistry()
    registry.register(StoreGauges(store, heard, lambda: now[0]))

    def get(name, **labels):
        return registry.get_sample_value(PREFIX + name, labels)

    return store, get


def test_replicas_by_state(told):
    store, get = told
    store.put("Deployment", child("Deployment", "llm", spec={"replicas": 3}))
    store.put("Pod", pod("a"))
    store.put("Pod", pod("b", annotations={ANNOTATION_DRAINING: "2030-01-01T00:00:00Z"}))
    store.put("Pod", pod("c", ready=False))
    store.put("Pod", pod("evicted", ready=False, phase="Failed"))
    store.put("Pod", pod("going", deletionTimestamp="2030-01-01T00:00:00Z"))
    found = {
        state: get("operator_service_replicas", namespace="ns", service="llm", state=state)
        for state in ("desired", "ready", "starting", "draining")
    }
    assert found == {"desired": 3, "ready": 2, "starting": 1, "draining": 1}


def test_conditions_and_quiet_watches(told):
    _, get = told
    labels = {"namespace": "ns", "service": "llm", "condition": "Ready", "reason": "CrashLoopBackOff"}
    assert get("operator_service_condition", **labels) == 0
    assert get("operator_watch_age_seconds", kind="Pod") == 10


def test_the_operators_metrics_are_those_of_the_contract():
    telemetry = Telemetry()
    telemetry.registry.register(StoreGauges(Store(), {}))
    found = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in telemetry.registry.collect()}
    assert found == {m.full_name: m.kind for m in OPERATOR_METRICS.values()}
