"""`pagetide top` over a real API server: what pods report comes through its proxy."""

import asyncio

import pytest

from pagetide_operator.top import main as command

pytestmark = pytest.mark.cluster


async def test_services_and_their_pods_are_shown(cluster, nodes, operator, kubeconfig, monkeypatch, capsys):
    await cluster.create(cluster.manifest("llm", replicas=1))
    await cluster.ready("llm")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", kubeconfig)
    monkeypatch.setenv("COLUMNS", "160")
    assert await asyncio.to_thread(command.main, ["-n", cluster.namespace, "--once", "--interval=0.5"]) == 0
    out = capsys.readouterr().out
    assert f"{cluster.namespace}/llm: 1 of 1 ready, Ready" in out
    (pod,) = [line.split() for line in out.splitlines() if f"{cluster.namespace}/llm " in line and "of" not in line]
    assert pod[1].startswith("llm-")
    assert pod[2:4] == ["ready", "0"], out
