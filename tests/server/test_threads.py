"""How many threads compute: as many as the process has cores' worth of time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagetide_server import threads
from pagetide_server.threads import set_up_threads, shared_cores

UNIFIED = "0::/pods/pod\n"
OLD = "4:cpu,cpuacct:/pods/pod\n3:memory:/other\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        pytest.param(UNIFIED, {"pods/pod/cpu.max": "200000 100000\n"}, 2, id="two cores' worth of time"),
        pytest.param(UNIFIED, {"pods/pod/cpu.max": "150000 100000\n"}, 2, id="one and a half are rounded up"),
        pytest.param(UNIFIED, {"pods/pod/cpu.max": "20000 100000\n"}, 1, id="a fifth of a core is one thread"),
        pytest.param(UNIFIED, {"pods/pod/cpu.max": "max 100000\n"}, None, id="no limit"),
        pytest.param(
            UNIFIED,
            {"pods/pod/cpu.max": "max 100000\n", "pods/cpu.max": "300000 100000\n", "cpu.max": "800000 100000\n"},
            3,
            id="the tightest of the groups above counts",
        ),
        pytest.param(UNIFIED, {"cpu.max": "400000 100000\n"}, 4, id="in a container its own group is the root"),
        pytest.param(UNIFIED, {"pods/pod/cpu.max": "nonsense\n"}, None, id="what cannot be read is no limit"),
        pytest.param(UNIFIED, {}, None, id="no such files"),
        pytest.param(
            OLD,
            {"cpu/pods/pod/cpu.cfs_quota_us": "250000\n", "cpu/pods/pod/cpu.cfs_period_us": "100000\n"},
            3,
            id="the older hierarchy",
        ),
        pytest.param(
            OLD,
            {"cpu/pods/pod/cpu.cfs_quota_us": "-1\n", "cpu/pods/pod/cpu.cfs_period_us": "100000\n"},
            None,
            id="the older hierarchy without a limit",
        ),
        pytest.param(None, {"cpu.max": "200000 100000\n"}, None, id="a system without control groups"),
    ],
)
def test_cores_of_a_control_group(groups: str | None, files: dict[str, str], cores: int | None, tmp_path: Path) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert shared_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("share", "stated", "found"),
    [
        pytest.param(2, None, "2", id="fewer than the machine has"),
        pytest.param(64, None, None, id="more than it may run on: torch counts right by itself"),
        pytest.param(None, None, None, id="no limit"),
        pytest.param(2, "5", "5", id="what the user set stays"),
    ],
)
def test_threads_of_torch(
    share: int | None, stated: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if stated is None else {"OMP_NUM_THREADS": stated})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(threads, "shared_cores", lambda: share)
    set_up_threads()
    assert os.environ.get("OMP_NUM_THREADS") == found
    assert os.environ["GOMP_SPINCOUNT"] == threads.SPINS
