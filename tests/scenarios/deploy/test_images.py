"""The recipes of our images, step by step as a builder takes them, in a folder and with this machine's packages.

This machine has no container engine and no registry, so two things differ from a real build. Packages are
this environment's, not the pinned ones (another test checks the pins). The base image is missing.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from muster.fleet.preflight import testpod
from muster.fleet.preflight.config import PreflightConfig
from muster.network.cni.part import SHIM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ("Dockerfile", "Dockerfile.gputest")
EXTRAS = {"Dockerfile": "data", "Dockerfile.gputest": "gputest-nvidia"}
_PINNED = re.compile(r"(\S+ -m venv (\S+) && )?\S+/pip install --require-hashes --requirement (\S+)")


class Step(NamedTuple):
    """An instruction, and in which stage of the recipe."""

    stage: int
    name: str
    text: str


def steps(recipe: str) -> list[Step]:
    text = (ROOT / "deploy" / recipe).read_text()
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    found, stage = [], -1
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Step(stage, name, rest.strip()))
    return found


def environment(recipe: str) -> dict[str, str]:
    """What the image's ENV says, as for a process whose PATH is the base image's."""
    made: dict[str, str] = {}
    found = steps(recipe)
    for step in found:
        if step.name == "ENV" and step.stage == found[-1].stage:
            made |= dict(pair.split("=", 1) for pair in step.text.split())
    return made


def sent(recipe: str, path: str) -> bool:
    """Whether a builder is sent this path of the repository: the last line of .dockerignore that fits decides."""
    ignored = False
    for line in (ROOT / "deploy" / f"{recipe}.dockerignore").read_text().split():
        pattern, keeps = line.removeprefix("!").removeprefix("**/"), line.startswith("!")
        if any(fnmatch.fnmatch(part, pattern) for part in path.split("/")) or f"{path}/".startswith(f"{pattern}/"):
            ignored = not keeps
    return not ignored


def copied(recipe: str, text: str, work: Path) -> None:
    *sources, target = text.split()
    for source in sources:
        assert sent(recipe, source), f"{source} is not sent to the builder"
        where = work / (source if target == "./" else target)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, where, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, where)


def built(recipe: str, place: Path) -> Path:
    """Take the steps of the first stage below `place`; return the environment that the image gets."""
    work, venv = place / "src", place / "opt/muster"
    work.mkdir()
    for step in steps(recipe):
        if step.stage != 0 or step.name not in ("COPY", "RUN"):
            continue
        if step.name == "COPY":
            copied(recipe, step.text, work)
            continue
        command = step.text
        pinned = _PINNED.fullmatch(command)
        if pinned is not None:
            assert (work / pinned[3]).is_file(), f"{pinned[3]} is not there when it is installed"
            if pinned[2] == "/tools":
                continue
            command = f"{sys.executable} -m venv {venv}"
        command = command.replace("/tools/bin/python", sys.executable)
        command = re.sub(r"(?<![\w.])/(opt/muster|dist)\b", lambda found: f"{place}/{found[1]}", command)
        env = {"PATH": os.environ["PATH"], "HOME": str(place), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(["bash", "-c", command], cwd=work, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if pinned is not None:
            packages = next(venv.glob("lib/python*/site-packages"))
            (packages / "pinned.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


def ran(recipe: str, venv: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as in a container of the image: its ENV, nothing of ours, a working folder without the source."""
    env = {**environment(recipe), "PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(venv.parent), "TMPDIR": "/tmp"}
    return subprocess.run(command, cwd=venv.parent, env=env, capture_output=True, text=True, check=False, timeout=100)


def test_the_image_of_gpu_tests_passes_what_preflight_runs_in_it(tmp_path: Path) -> None:
    recipe = "Dockerfile.gputest"
    venv = built(recipe, tmp_path)
    assert environment(recipe)["PATH"].startswith("/opt/muster/bin:")
    where = ran(recipe, venv, "python", "-c", "import muster.gputest; print(muster.gputest.__file__)")
    assert where.stdout.startswith(str(venv)), where
    record = testpod.TestRecord("node", "uid", "boot", 1, "cpu")
    config = PreflightConfig(backend="cpu")
    pod = testpod.manifest(record, 2, config, namespace="n", image="i", team_key="t", retest=False)
    summary = tmp_path / "termination-log"
    command = [
        str(summary) if word == "/dev/termination-log" else word for word in pod["spec"]["containers"][0]["command"]
    ]
    done = ran(recipe, venv, *command, "--budget-s", "40")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["passed"]
    assert json.loads(summary.read_text())["passed"]
    (start,) = (step.text for step in steps(recipe) if step.name == "CMD")
    alone = ran(recipe, venv, *json.loads(start))
    assert alone.returncode in (1, 3), alone  # no GPU here, and perhaps no PyTorch
    assert "gpu" in (alone.stdout + alone.stderr).lower()


def test_the_image_of_muster_has_its_program(tmp_path: Path) -> None:
    recipe = "Dockerfile"
    venv = built(recipe, tmp_path)
    (start,) = (step.text for step in steps(recipe) if step.name == "CMD")
    done = ran(recipe, venv, *json.loads(start), "--help")
    assert done.returncode == 0, done
    assert "Run the controllers" in done.stdout
    where = ran(recipe, venv, "python", "-c", "import muster; print(muster.__file__)")
    assert where.stdout.startswith(str(venv)), where


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_runs_as_root_and_the_last_stage_has_only_what_was_built(recipe: str) -> None:
    last = [step for step in steps(recipe) if step.stage == steps(recipe)[-1].stage]
    copies = [step.text for step in last if step.name == "COPY"]
    plugin = ["--from=plugin /muster-cni /opt/muster/cni/muster-cni"] if recipe == "Dockerfile" else []
    assert copies == ["--from=build /opt/muster /opt/muster", *plugin]
    assert [step.name for step in last if step.name not in ("COPY", "RUN")] == ["FROM", "ENV", "USER", "CMD"]
    assert int(last[-2].text.partition(":")[0]) > 0


def test_both_recipes_differ_in_nothing_but_what_they_install_and_start() -> None:
    one, two = (
        [
            step
            for step in steps(recipe)
            if step.stage < 1 and "requirements/" not in step.text and not step.text.startswith("GO=")
        ]
        for recipe in RECIPES
    )
    assert one == two
    assert (ROOT / "deploy/Dockerfile.dockerignore").read_text() == (
        ROOT / "deploy/Dockerfile.gputest.dockerignore"
    ).read_text()


def test_the_plugin_is_built_from_what_the_builder_is_sent_and_is_where_the_agent_installs_it_from() -> None:
    (source,) = [step.text.split() for step in steps("Dockerfile") if step.stage == 1 and step.name == "COPY"]
    for each in (ROOT / source[0]).iterdir():
        assert sent("Dockerfile", f"{source[0]}/{each.name}")
    assert any(step.text == f"--from=plugin /muster-cni {SHIM}" for step in steps("Dockerfile"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_installed_packages_are_pinned_by_hash_and_match_the_project(recipe: str) -> None:
    installed = [found[3] for step in steps(recipe) if (found := _PINNED.fullmatch(step.text))]
    assert installed[0] == "requirements/dev.txt"
    pins, tested = versions(installed[1]), versions(installed[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, extras = list(project["dependencies"]), [EXTRAS[recipe]] if EXTRAS[recipe] else []
    while extras:
        for each in project["optional-dependencies"][extras.pop()]:
            own = re.fullmatch(r"muster\[(.*)\]", each)
            extras += own[1].split(",") if own else []
            wanted += [] if own else [each]
    names = {re.split(r"[\[<>=!~; ]", each)[0].lower() for each in wanted}
    assert names <= pins.keys()
    assert {name: pins[name] for name in pins.keys() & tested.keys()} == {
        name: tested[name] for name in pins.keys() & tested.keys()
    }, "what is shipped is what is tested"


def versions(file: str) -> dict[str, set[str]]:
    """Which versions a file of requirements pins, by name; each with at least one hash."""
    found: dict[str, set[str]] = {}
    for entry in re.split(r"(?m)^(?=[A-Za-z])", (ROOT / file).read_text())[1:]:
        name, version = re.match(r"([\w.-]+)==(\S+)", entry).groups()  # type: ignore[union-attr]
        assert "--hash=sha256:" in entry, entry
        found.setdefault(name.lower(), set()).add(version)
    return found
