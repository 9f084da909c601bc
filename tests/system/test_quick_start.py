"""The README's quick start, typed as it is printed, where a fresh clone would have it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.musterprogram import MUSTER, Muster, muster_in

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        yield muster


def printed() -> list[str]:
    """The commands of the first console block below "Your own script"."""
    text = (ROOT / "README.md").read_text().partition("## Your own script\n")[2]
    block = text.partition("```console\n")[2].partition("```")[0]
    return [line.removeprefix("$ ").partition("#")[0].strip() for line in block.splitlines()]


def test_it_runs_as_printed(muster: Muster, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=shutil.ignore_patterns("ckpt", "__pycache__"))
    program = Path(MUSTER).parent
    (clone / ".venv").symlink_to(program.parent)
    commands = printed()
    assert commands[0] == "source .venv/bin/activate"
    assert [command.split()[1] for command in commands if command.startswith("muster ")] == [
        "up", "run", "status", "logs", "run", "explain", "down",
    ]  # fmt: skip
    script = "set -e\n" + "\n".join(f"echo '>>> {command}'\n{command}" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script], cwd=clone, env=muster.env, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    said = dict(re.findall(r"(?ms)^>>> (.*?)$\n(.*?)(?=^>>> |\Z)", done.stdout))
    assert "Succeeded: attempt 1 finished" in done.stdout
    assert "Phase:       Succeeded" in said["muster status train"]
    assert "accuracy" in said["muster logs train"]
    assert "needs 9 nodes; the cluster has 4. Add 5, or use --nodes 4" in said["muster explain big"]
    assert muster.processes() == {}
