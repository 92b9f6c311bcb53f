"""The Dockerfile, read: no container is built here."""

import re
import tomllib
from pathlib import Path

import pytest

from pagetide_cli.main import COMMANDS
from pagetide_operator.desired.pod import USER_ID
from pagetide_spec.names import GATEWAY_PORT, OPERATOR_METRICS_PORT, PATH_LIVE, SERVER_PORT

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def stages():
    """name -> (base, its instructions as (word, rest))."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    out = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            instructions = out.setdefault(name, (base, []))[1]
        else:
            instructions.append((word, rest))
    return out


STAGES = stages()
FINAL = ["operator", "server"]


def of(stage, word):
    return [rest for w, rest in STAGES[stage][1] if w == word]


def test_the_targets_are_there_each_on_the_base_that_its_packages_were_installed_on():
    assert set(STAGES) == {*FINAL, *(f"{n}-build" for n in FINAL)}
    for name in FINAL:
        assert STAGES[name][0] == STAGES[f"{name}-build"][0]


@pytest.mark.parametrize("stage", STAGES)
def test_bases_are_pinned_to_a_patch_version(stage):
    assert re.search(r":\d+\.\d+\.\d+-[\w.-]+$", STAGES[stage][0])


@pytest.mark.parametrize("stage", FINAL)
def test_nobody_runs_as_root_and_the_user_is_the_pods(stage):
    assert of(stage, "USER") == [f"{USER_ID}:{USER_ID}"]
    words = [w for w, _ in STAGES[stage][1]]
    assert not {"RUN", "COPY"} & set(words[words.index("USER") :])


@pytest.mark.parametrize("stage", FINAL)
def test_who_asks_for_the_users_name_or_home_gets_one(stage):
    variables = dict(pair.split("=", 1) for line in of(stage, "ENV") for pair in line.split())
    assert (variables["USER"], variables["HOME"]) == ("pagetide", "/tmp")


@pytest.mark.parametrize("stage", FINAL)
def test_build_tools_stay_behind(stage):
    installed = " ".join(of(stage, "RUN"))
    assert "pip" not in installed
    assert not re.search(r"build-essential|g\+\+|make|git|curl", installed)
    assert (stage == "operator") == ("gcc" not in installed)  # Triton compiles its launchers at run time
    (copied,) = of(stage, "COPY")
    assert copied == f"--from={stage}-build /opt/pagetide /opt/pagetide"


@pytest.mark.parametrize("stage", STAGES)
def test_package_lists_leave_no_layer(stage):
    for line in of(stage, "RUN"):
        if "apt-get" in line:
            assert "--no-install-recommends" in line
            assert line.endswith("rm -rf /var/lib/apt/lists/*")


@pytest.mark.parametrize("stage", [f"{n}-build" for n in FINAL])
def test_all_that_the_wheel_is_built_from_is_copied(stage):
    copied = {name for line in of(stage, "COPY") for name in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    wanted = {p.split("/")[0] for p in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert wanted | {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= copied
    (install,) = [line for line in of(stage, "RUN") if "pip install" in line]
    extra = re.search(r'"\.\[(\w+)\]"', install)[1]
    assert extra in PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("stage", "entry", "ports"),
    [
        ("operator", ["pagetide"], {GATEWAY_PORT, OPERATOR_METRICS_PORT}),
        ("server", ["pagetide", "serve"], {SERVER_PORT}),
    ],
)
def test_entry_points_and_ports_are_the_codes(stage, entry, ports):
    (given,) = of(stage, "ENTRYPOINT")
    assert re.findall(r'"([^"]+)"', given) == entry
    commands = [*entry[1:], *re.findall(r'"([^"]+)"', " ".join(of(stage, "CMD")))]
    assert entry[0] in PROJECT["project"]["scripts"]
    assert set(commands) <= set(COMMANDS)
    assert {int(p) for line in of(stage, "EXPOSE") for p in line.split()} == ports


def test_the_server_says_whether_it_lives():
    (check,) = of("server", "HEALTHCHECK")
    assert f"http://127.0.0.1:{SERVER_PORT}{PATH_LIVE}" in check
    assert of("operator", "HEALTHCHECK") == []
