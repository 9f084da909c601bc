"""The data tutorial, typed as it is printed, where a fresh clone would have it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.ports import free_port
from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import MUSTER, Muster, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "data-tutorial.md"
PORT = "5055"


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        yield muster


def printed() -> list[str]:
    """The commands of all console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.removeprefix("$ ").partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


class Shell:
    """A shell in which a reader of the page types one command after the other."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, command: str) -> str:
        """Run a command and return its output; fails the test if its exit status is not 0."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho; echo \"=== $?\"\n")
        self._process.stdin.flush()
        said = []
        for line in self._process.stdout:
            if line.startswith("=== "):
                assert line == "=== 0\n", (command, "".join(said))
                return "".join(said)
            said.append(line)
        raise AssertionError(f"the shell ended at {command!r}: {''.join(said)}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_it_runs_as_printed(muster: Muster, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=shutil.ignore_patterns("ckpt", "__pycache__"))
    (clone / ".venv").symlink_to(Path(MUSTER).parents[1])
    (clone / "bin").mkdir()
    (clone / "bin" / "kubectl").symlink_to(kubectl_program())
    commands = [command.replace(PORT, str(free_port())) for command in printed() if PORT in command]
    port = str(free_port())
    commands = [command.replace(PORT, port) for command in printed()]
    shell = Shell(clone, {**muster.env, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"})
    said: dict[str, str] = {}
    try:
        for command in commands:
            if command.startswith("muster fault"):
                eventually("a checkpoint is confirmed", lambda: checkpoints(muster))
            if command.startswith("muster logs"):
                eventually("the job has ended", lambda: job(muster)["status"].get("phase") == "Succeeded")
            said[command] = shell.type(command)
    finally:
        for pid in re.findall(r"moto_server", ""):
            os.kill(int(pid), 9)
        shell.close()
    assert said


def job(muster: Muster) -> dict[str, Any]:
    return muster.json("status", "train")


def checkpoints(muster: Muster) -> list[Any]:
    return job(muster)["status"].get("checkpoints") or []
