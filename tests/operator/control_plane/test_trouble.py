"""What goes wrong in ordinary life, and what the status then says."""

import asyncio
import json
import os
import urllib.request

import pytest

from pagetide_spec.names import KIND

pytestmark = pytest.mark.cluster


async def has_reason(cluster, name, reason, status="False"):
    found = await cluster.condition(name)
    return (found["reason"], found["status"]) == (reason, status)


async def shows(cluster, name, reason, seconds=30):
    await cluster.until(lambda: has_reason(cluster, name, reason), seconds, lambda: cluster.condition(name))
    return (await cluster.condition(name))["message"]


async def test_an_invalid_service_says_so_and_stops_no_other(cluster, nodes, operator):
    bad = cluster.manifest("bad", autoscaling={"minReplicas": 3, "maxReplicas": 2})
    del bad["spec"]["replicas"]
    await cluster.create(bad)
    await cluster.create(cluster.manifest("good"))
    message = await shows(cluster, "bad", "InvalidSpec")
    assert message == "spec.autoscaling.maxReplicas: 2: must not be less than minReplicas"
    await cluster.ready("good")
    await cluster.patch(KIND, "bad", {"spec": {"autoscaling": {"minReplicas": 1}}})
    await cluster.ready("bad")


async def test_a_name_too_long_for_children_is_refused_in_the_status(cluster, nodes, operator):
    await cluster.create(cluster.manifest("a" * 70))
    await cluster.create(cluster.manifest("good"))
    assert "has 70 characters" in await shows(cluster, "a" * 70, "InvalidName")
    await cluster.ready("good")


async def test_a_field_that_the_server_dropped_is_found(cluster, operator):
    made = cluster.manifest("llm")
    applied = {**made, "spec": {**made["spec"], "engine": {"maxNumSeq": 8}}}
    made["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    await cluster.create(made)
    assert "did you mean maxNumSeqs?" in await shows(cluster, "llm", "InvalidSpec")


async def test_a_crash_loop_shows_exit_code_and_last_line(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm", env={"FAKE_EXIT": "3"}))
    message = await shows(cluster, "llm", "CrashLoopBackOff")
    assert message == "container server ended with exit code 3: ValueError: no such model"


async def test_an_image_that_cannot_be_pulled(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm", image="registry.invalid/nothing:1"))
    assert "registry.invalid/nothing:1" in await shows(cluster, "llm", "ImagePullBackOff", 60)


async def test_a_quota_that_forbids_pods(cluster, nodes, operator):
    quota = {"kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await cluster.create(quota)
    await cluster.create(cluster.manifest("llm"))
    assert "exceeded quota" in await shows(cluster, "llm", "QuotaExceeded")


async def test_a_volume_that_does_not_exist(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm", model={"uri": "pvc://nowhere/model"}))
    assert "nowhere" in await shows(cluster, "llm", "VolumePending")


async def test_more_gpus_than_the_cluster_has(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm", resources={"limits": {"nvidia.com/gpu": 4096}}))
    assert "Insufficient nvidia.com/gpu" in await shows(cluster, "llm", "Unschedulable")


async def test_what_the_api_server_refuses_of_a_child(cluster, operator):
    made = cluster.manifest("llm")
    made["spec"]["template"]["tolerations"] = [{"operator": "Sometimes"}]
    await cluster.create(made)
    assert "tolerations" in await shows(cluster, "llm", "ApplyFailed")


async def test_an_object_of_somebody_else_is_not_taken_over(cluster, operator):
    ports = [{"port": 1}]
    other = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "llm"}, "spec": {"ports": ports}}
    await cluster.create(other)
    await cluster.create(cluster.manifest("llm"))
    assert await shows(cluster, "llm", "NameConflict") == "Service llm exists and has another owner"
    assert "labels" not in (await cluster.get("Service", "llm"))["metadata"]
    await cluster.delete("Service", "llm")  # nothing that the operator watches; it looks again by itself

    async def is_ours():
        found = await cluster.find("Service", "llm")
        return found and found["metadata"].get("ownerReferences")

    await cluster.until(is_ours)


async def test_a_failing_new_version_leaves_the_old_one_serving_and_recovers(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    (old,) = await cluster.list("Pod")
    broken = cluster.manifest("llm", env={"FAKE_EXIT": "3"})["spec"]["template"]
    await cluster.patch(KIND, "llm", {"spec": {"template": broken}})
    message = await shows(cluster, "llm", "CrashLoopBackOff")
    assert message.endswith("; 1 of 1 replicas serve")
    assert old["metadata"]["uid"] in {p["metadata"]["uid"] for p in await cluster.list("Pod")}
    await cluster.patch(KIND, "llm", {"spec": {"template": cluster.manifest("llm")["spec"]["template"]}})
    await cluster.ready("llm")


async def test_without_a_spare_gpu_pods_are_replaced_one_at_a_time(cluster, nodes, run_operator):
    nodes = (await cluster.client.request("GET", "/api/v1/nodes"))["items"]
    count = max((int(n["status"]["allocatable"].get("nvidia.com/gpu", 0)) for n in nodes), default=0)
    if count < 1 or len(nodes) > 1:
        pytest.skip("needs a cluster of one node with GPUs")
    run_operator("--surge-patience-seconds=1")
    await cluster.create(cluster.manifest("llm", resources={"limits": {"nvidia.com/gpu": count}}))
    await cluster.ready("llm")
    await cluster.patch(KIND, "llm", {"spec": {"engine": {"maxNumSeqs": 7}}})

    async def says_so():
        return "ReplacingOneByOne" in {e["reason"] for e in await cluster.list("Event")}

    await cluster.until(says_so, 30, lambda: cluster.condition("llm", "Progressing"))
    await cluster.ready("llm", 60)

    async def is_as_asked_again():
        strategy = (await cluster.get("Deployment", "llm"))["spec"]["strategy"]["rollingUpdate"]
        return strategy == {"maxSurge": 1, "maxUnavailable": 0}

    await cluster.until(is_as_asked_again)


async def fault(path):
    """Do something to a pod behind Kubernetes' back, where the cluster has a way to."""
    address = os.environ.get("PAGETIDE_TEST_FAULTS")
    if not address:
        pytest.skip("needs nodes that take faults on demand")
    request = urllib.request.Request(address + path, method="POST")
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).close())


async def test_ready_follows_the_pods_at_any_time(cluster, nodes, operator):
    """A server that hangs is seen by its probes alone: no object of ours changes but for its status."""
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    (pod,) = await cluster.list("Pod")
    place = f"?ns={cluster.namespace}&pod={pod['metadata']['name']}"
    await fault(f"/freeze{place}")
    assert await shows(cluster, "llm", "Starting") == "0 of 1 replicas serve"
    assert (await cluster.service("llm"))["status"]["readyReplicas"] == 0
    await fault(f"/freeze{place}&off=1")
    await cluster.ready("llm")


async def test_a_server_that_begins_to_crash_after_it_was_ready(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    (pod,) = await cluster.list("Pod")
    await fault(f"/kill?ns={cluster.namespace}&pod={pod['metadata']['name']}&reason=OOMKilled")
    message = await shows(cluster, "llm", "OOMKilled")
    assert message.startswith("container server took more memory than its limit")
    await cluster.ready("llm", 60)  # the kubelet has started it again


async def test_a_service_deleted_in_the_foreground_goes_after_its_children(cluster, nodes, operator):
    await cluster.create(cluster.manifest("llm"))
    await cluster.ready("llm")
    await cluster.client.request("DELETE", cluster.path(KIND, "llm"), body={"propagationPolicy": "Foreground"})

    async def is_gone():
        return await cluster.find(KIND, "llm") is None

    await cluster.until(is_gone, 40)
    assert await cluster.find("Deployment", "llm") is None
    assert await cluster.find("Service", "llm") is None


async def test_an_account_that_is_missing_is_named(cluster, nodes, operator):
    made = cluster.manifest("llm")
    made["spec"]["template"]["serviceAccountName"] = "nobody"
    await cluster.create(made)
    assert "nobody" in await shows(cluster, "llm", "FailedCreate")
