"""How much memory there is to take: the machine's, what a control group leaves, what the process may address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagetide_server.model.host_memory import available_bytes


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}
V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 8_192_000, id="no control groups"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": "1000000\n",
                f"{V2}/memory.current": "600000\n",
                f"{V2}/memory.stat": "anon 5\ninactive_file 100000\n",
            },
            500_000,
            id="a container's limit, less what it holds, file pages aside",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "max\n", f"{V2}/memory.current": "600000\n"},
            8_192_000,
            id="a group without a limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                f"{V2}/outer/memory.max": "700000",
                f"{V2}/outer/memory.current": "600000",
                f"{V2}/outer/inner/memory.max": "900000",
                f"{V2}/outer/inner/memory.current": "100000",
            },
            100_000,
            id="the tightest of nested groups",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu:/x\n9:memory:/pod\n",
                f"{V2}/memory/pod/memory.limit_in_bytes": "500000",
                f"{V2}/memory/pod/memory.usage_in_bytes": "200000",
                f"{V2}/memory/memory.limit_in_bytes": "9223372036854771712",
                f"{V2}/memory/memory.usage_in_bytes": "1",
            },
            300_000,
            id="version 1 of control groups",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": "500000",
                f"{V2}/memory.current": "600000",
            },
            0,
            id="more in use than allowed",
        ),
    ],
)
def test_available_memory(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | files)
    assert available_bytes(tmp_path) == expected


def test_a_limit_of_addresses_counts() -> None:
    """As `ulimit -v` sets it; torch would find out when the cache is to be taken."""
    script = """
import resource
from pagetide_server.model.host_memory import available_bytes
before = available_bytes()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(before, available_bytes())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    before, after = map(int, said.stdout.split())
    assert after <= 512 << 20 < before


def test_available_memory_of_this_machine() -> None:
    assert 0 < available_bytes() < 1 << 50
