"""Figures of GPUs: NVML is a fake here, but for the real one of a machine without a GPU."""

from __future__ import annotations

import sys
import types

import pytest

from pagetide_server.api import gpu
from pagetide_server.api.gpu import Gpu, Gpus
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.wire.messages import Ready


class NVMLError(Exception):
    pass


class Nvml(types.SimpleNamespace):
    """Two GPUs; `broken` names functions that refuse."""

    NVMLError = NVMLError

    def __init__(self, *broken):
        super().__init__(broken=broken, started=0)

    def _answer(self, name, value):
        if name in self.broken:
            raise NVMLError("Not Supported")
        return value

    def nvmlInit(self):
        self.started += 1
        self._answer("init", None)

    def nvmlDeviceGetCount(self):
        return self._answer("count", 2)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._answer(f"handle {index}", index)

    def nvmlDeviceGetUUID(self, handle):
        return self._answer("uuid", f"GPU-{'ab'[handle]}123")

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._answer("rates", types.SimpleNamespace(gpu=25 + handle))

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._answer("memory", types.SimpleNamespace(used=10, total=80))


@pytest.fixture
def install(monkeypatch):
    def install(*broken):
        nvml = Nvml(*broken)
        monkeypatch.setitem(sys.modules, gpu.PACKAGE, nvml)
        return nvml

    return install


FIRST, SECOND = Gpu("0", 0.25, 10.0, 80.0), Gpu("1", 0.26, 10.0, 80.0)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        pytest.param(None, [FIRST, SECOND], id="all"),
        pytest.param("1", [SECOND], id="by index"),
        pytest.param("1, 0", [FIRST, SECOND], id="by indices"),
        pytest.param("GPU-a", [FIRST], id="by the beginning of a UUID"),
        pytest.param("", [], id="none"),
        pytest.param("-1", [], id="none, in another way"),
    ],
)
def test_which_gpus_are_told(install, visible, found):
    install()
    assert Gpus(visible).read() == found


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        pytest.param(["rates"], [Gpu("0", None, 10.0, 80.0), Gpu("1", None, 10.0, 80.0)], id="a slice tells no use"),
        pytest.param(["memory"], [Gpu("0", 0.25, None, None), Gpu("1", 0.26, None, None)], id="no memory"),
        pytest.param(["handle 0"], [SECOND], id="one is lost"),
        pytest.param(["count"], [], id="the driver fails"),
        pytest.param(["init"], [], id="no driver"),
    ],
)
def test_what_cannot_be_read_is_left_out(install, broken, found):
    install(*broken)
    assert Gpus(None).read() == found


def test_nvml_is_looked_for_once(install):
    nvml = install("init")
    gpus = Gpus(None)
    assert gpus.read() == gpus.read() == []
    assert nvml.started == 1


def test_without_the_package_there_is_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, gpu.PACKAGE, None)
    assert Gpus(None).read() == []


def test_the_real_library_never_fails():
    pytest.importorskip(gpu.PACKAGE, reason="needs nvidia-ml-py")
    assert all(isinstance(found, Gpu) for found in Gpus(None).read())


def ready(device, device_type):
    sizes = {"block_size": 16, "num_blocks": 10, "num_swap_blocks": 0, "vocab_size": 9, "max_model_len": 64}
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "eos_token_ids": [2]}
    return Ready(**sizes, **limits, dtype="float32", device=device, device_type=device_type, attention="torch")


@pytest.mark.parametrize(("device", "device_type", "is_told"), [("NVIDIA H200", "cuda", True), ("cpu", "cpu", False)])
def test_they_are_metrics_of_a_server_on_a_gpu(install, device, device_type, is_told):
    install()
    metrics = ServerMetrics("m", "1")
    metrics.ready = ready(device, device_type)
    text = metrics.render().decode()
    assert ('pagetide_gpu_utilization_ratio{gpu="0",model_name="m"} 0.25' in text) is is_told
    assert ('pagetide_gpu_memory_total_bytes{gpu="1",model_name="m"} 80.0' in text) is is_told
