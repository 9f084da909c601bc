"""The data tutorial, typed as it is printed, where a fresh clone would have it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.ports import free_port
from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import MUSTER, Muster, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "data-tutorial.md"
PORT = "5055"
COMMAND_S = 100.0


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
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """Run a command and return its output; fails the test if its exit status is not 0."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f'{command}\nsaid=$?; echo; echo "=== $said"\n')
        self._process.stdin.flush()
        said: list[str] = []
        deadline = threading.Timer(COMMAND_S, self.close)
        deadline.start()
        try:
            for line in self._process.stdout:
                if line.startswith("=== "):
                    assert line == "=== 0\n", (command, "".join(said))
                    return "".join(said)
                said.append(line)
        finally:
            deadline.cancel()
        raise AssertionError(f"the shell ended at {command!r}: {''.join(said)}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def test_it_runs_as_printed(muster: Muster, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=shutil.ignore_patterns("ckpt", "__pycache__"))
    (clone / ".venv").symlink_to(Path(MUSTER).parents[1])
    (clone / "bin").mkdir()
    (clone / "bin" / "kubectl").symlink_to(kubectl_program())
    port = str(free_port())
    shell = Shell(clone, {**muster.env, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"})
    said: dict[str, str] = {}
    try:
        for command in printed():
            if command.startswith("muster fault"):
                eventually("a checkpoint is confirmed", lambda: status(muster).get("checkpoints"))
            if command.startswith("muster logs"):
                eventually("the job has ended", lambda: status(muster).get("phase") == "Succeeded")
            said[command] = shell.type(command.replace(PORT, port))
    finally:
        shell.close()
    eventually("no process is left", lambda: muster.processes() == {})

    def output(start: str) -> str:
        return next(text for command, text in said.items() if command.startswith(start))

    assert "wrote 12 shards with 1797 samples to s3://digits/train" in output("python make_shards.py")
    resumed, whole = (
        re.findall(r"final step (\d+) .* samples (\w+)", output(each)) for each in ("muster logs", "MUSTER")
    )
    assert "from step 0" not in output("muster logs")
    assert resumed == whole
    assert "digits-000.tar" in output("muster data ls")
    assert re.search(r"node-1 +ok +[\d.]+ [KM]iB", output("muster data status"))
    steps = {int(step) for step in re.findall(r"^\s*(\d+)\s", output("muster checkpoints"), re.MULTILINE)}
    assert max(steps) == 160
    assert "demo-secret" not in "".join(said.values())


def status(muster: Muster) -> dict[str, Any]:
    found: dict[str, Any] = muster.json("status", "train")["status"]
    return found
