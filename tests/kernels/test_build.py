"""Building the C++ ops: each is built once, what cannot be is one clear line, and no process hangs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagetide_kernels.cpu import build


def test_a_lock_that_is_never_freed_ends_the_wait(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LOCK_TIMEOUT_S", 0.3)
    empty_cache.mkdir()
    with (empty_cache / "x.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(build.BuildError, match="another process has held"):
            build._locked(empty_cache / "x.lock").__enter__()


def test_a_library_that_cannot_be_loaded_is_named(empty_cache: Path, fake_compiler: Callable[[str], Path]) -> None:
    fake_compiler('echo "no library" > "$out"')
    with pytest.raises(build.BuildError, match=r"\.so cannot be loaded"):
        build.load()


def test_a_compiler_that_cannot_be_run_is_named(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of another processor."""
    strange = tmp_path / "strange-c++"
    strange.write_bytes(b"\x7fELF")
    strange.chmod(0o755)
    monkeypatch.setenv("CXX", str(strange))
    with pytest.raises(build.BuildError, match=r"strange-c\+\+ cannot be run"):
        build.load()


def test_a_part_of_a_library_is_built_again(empty_cache: Path, fake_compiler: Callable[[str], Path]) -> None:
    """Half of one, loaded, would end the process by a bus error."""
    source = Path(sys.executable).resolve()
    calls, whole = fake_compiler(f'cp {source} "$out"'), source.read_bytes()
    path = build._built(())
    for kept in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert build._built(()).read_bytes() == whole
    calls.unlink()
    assert build._built(()) == path
    assert not calls.exists()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("error: unrecognized command line option '{}'", id="the compiler: GCC before 11 and AVX-VNNI"),
        pytest.param("x.s:7: Error: no such instruction: 'vpdpbusd'", id="the assembler"),
    ],
)
@pytest.mark.parametrize("name", build.DOT_PRODUCTS)
def test_a_compiler_that_is_older_than_the_processor_builds_what_it_can(
    name: str, said: str, empty_cache: Path, old_compiler: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, flag = build.DOT_PRODUCTS[name]
    calls = old_compiler(flag, said)
    made = build._built((*build.FLAGS, *build.INSTRUCTION_SETS[name], flag))
    assert made.read_text() == "built\n"
    assert [path.suffix for path in empty_cache.iterdir() if path != made] == [".lock"]
    first, second = calls.read_text().splitlines()
    assert first.replace(f" {flag}", "") == second
    assert caplog.messages == [
        f"the C++ ops are slower than they could be: built without {flag}, which {os.environ['CXX']} does not know"
    ]


def test_a_compiler_that_fails_otherwise_is_not_asked_twice(
    empty_cache: Path, fake_compiler: Callable[[str], Path]
) -> None:
    calls = fake_compiler('echo "x.cpp:1:2: error: no room left" >&2; exit 1')
    with pytest.raises(build.BuildError, match=r"fake-c\+\+ failed: x.cpp:1:2: error: no room left"):
        build._built((*build.FLAGS, build.DOT_PRODUCTS["AVX2"][1]))
    assert calls.read_text().count("\n") == 1


# Whatever was built ahead in this tree does not count.
LOAD = "from pagetide_kernels.cpu import build; build.PREBUILT = build.FOLDER / 'none'; build.load(); print('loaded')"
# Prints the largest differences between ops and what they mean: attention over a mixed batch (in float64: the float32
# reference is itself 1e-6 off), matrix products, the search for the largest of them, drawing. (The
# products' results are greater than attention's, and a number half-way between two may be rounded either way.)
COMPARE = """
import torch
from pagetide_kernels.paged_attention import paged_attention
from pagetide_kernels.reference.paged_attention import paged_attention as attended
torch.manual_seed(1)
ints = lambda *v: torch.tensor(v, dtype=torch.int32)
keys, values = torch.randn(2, 40, 16, 2, 39)
batch = dict(
    query=torch.randn(24, 6, 39), key_cache=keys, value_cache=values,
    block_tables=torch.randperm(40)[:38].int().view(2, 19), context_lens=ints(300, 90), query_starts=ints(0, 1, 24),
)
for cap in (None, 2.0):
    got = paged_attention(**batch, max_query_len=23, max_context_len=300, scale=0.4, soft_cap=cap)
    print(float((got - attended(**batch, scale=0.4, soft_cap=cap, dtype=torch.float64)).abs().max()))
from pagetide_kernels.packed_linear import linear, pack
from pagetide_kernels.reference import linear as plain
weight, x = torch.randn(75, 70), torch.randn(9, 70)
exact = plain.linear(plain.rounded(x), *plain.quantize(weight))
print(float((linear(x, pack(weight.clone(), "int8")) - exact).abs().max()) * 1e-3)
print(float((linear(x, pack(weight.clone())) - x.double() @ weight.double().T).abs().max()) * 1e-1)
from pagetide_kernels.linear_argmax import linear_argmax, screen_of
for kept in (weight, weight.half(), weight.bfloat16()):
    packed = pack(kept.clone())
    top, place = linear(x, packed).max(1)
    for screen in (None, screen_of(packed)):
        places, values = linear_argmax(x, packed, screen)
        print(float((places != place).sum() + (values - top).abs().max()))
from pagetide_kernels.cpu.sample import sample
from pagetide_kernels.reference.sample import sample as sorted_sample
logits, table = torch.randn(40, 999) * 3, torch.randint(0, 2**31, (999,)).int()
shapes = torch.rand(40, 3).double().clamp(min=0.1) * torch.tensor([2.0, 1.2, 0.3])
top_k, numbers = torch.randint(0, 60, (40,)), (table, torch.zeros(999).int(), torch.zeros(40, 2).long())
exact = sorted_sample(logits, shapes[:, 0], top_k, shapes[:, 1], shapes[:, 2], table.expand(40, -1))
print(float((sample(logits, shapes, top_k, *numbers)[0] != exact).sum()))
heads = torch.randn(2, 40, 16, 1, 64).bfloat16()
wide = dict(batch, query=torch.randn(24, 2, 64), key_cache=heads[0], value_cache=heads[1])
got = paged_attention(**wide, max_query_len=23, max_context_len=300, scale=0.2)
print(float((got - attended(**wide, scale=0.2, dtype=torch.float64)).abs().max()))
"""


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | environment
    )


def test_processes_that_start_together_build_once(empty_cache: Path, quick_compiler: None) -> None:
    processes = [start(LOAD) for _ in range(3)]
    assert [p.communicate(timeout=200)[0] for p in processes] == ["loaded\n"] * 3
    libraries = [path for path in empty_cache.iterdir() if path.suffix != ".lock"]
    assert [path.suffix for path in libraries] == [".so"]


CAPABILITIES = ["default", "avx2"]


@pytest.fixture(scope="module")
def comparing(
    needs_compiler: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each capability; they run together, as each compiles for ten seconds first."""
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {"PAGETIDE_CACHE": cache, "PAGETIDE_KERNELS": "cpp"}
    started = {c: start(COMPARE, ATEN_CPU_CAPABILITY=c, **environment) for c in CAPABILITIES}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_instruction_set_computes_the_same(comparing: dict[str, subprocess.Popen[str]], capability: str) -> None:
    differences = [float(line) for line in comparing[capability].communicate(timeout=200)[0].split()]
    assert len(differences) == 12
    assert max(differences) < 2e-6
