"""tools/setup on a small project: its messages, and that it prints nothing if there is nothing to do."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).resolve().parents[2] / "tools/setup"
PROJECT = """\
[project]
name = "small"
version = "1"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# A build backend of its own (PEP 517, PEP 660), as nothing may be downloaded here.
BACKEND = """\
import zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.writestr("small.py", "")
        wheel.writestr("small-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n")
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
    return name
"""


def project(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The script in a small project, and the environment to run it in."""
    for name, text in {"pyproject.toml": PROJECT, "backend.py": BACKEND, "requirements/dev.txt": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "VIRTUAL_ENV"))}
    return Path(script), kept | {"PYTHON": sys.executable}


def test_it_says_what_it_does_when_it_does_it(tmp_path: Path) -> None:
    script, env = project(tmp_path)

    def setup() -> list[str]:
        done = subprocess.run([script], capture_output=True, text=True, check=False, env=env, timeout=200)
        assert (done.returncode, done.stdout) == (0, ""), done
        return [line for line in done.stderr.splitlines() if ".venv" in line]

    first, last = setup()
    assert first.startswith("making .venv from requirements/dev.txt")
    assert last.startswith(".venv is ready after ")
    assert (tmp_path / ".venv/bin/python").exists()
    assert setup() == []
    (tmp_path / "requirements/dev.txt").write_text("# changed\n")
    assert len(setup()) == 2


def test_it_shows_steps_and_seconds_on_a_terminal_and_few_lines_elsewhere(tmp_path: Path) -> None:
    """Issue 11.28: setup was silent for 80 s."""
    script, env = project(tmp_path)
    piped = subprocess.run([script], capture_output=True, text=True, check=True, env={**env, "CI": "1"}, timeout=200)
    steps = ["step 1 of 3, Python environment", "step 2 of 3, packages", "step 3 of 3, Muster"]
    assert [line.strip() for line in piped.stderr.splitlines() if "step" in line] == [f"{step} ..." for step in steps]

    (tmp_path / "requirements/dev.txt").write_text("# changed\n")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.run([script], stdout=subprocess.PIPE, stderr=theirs, check=True, env=env, timeout=200)
        os.close(theirs)
        shown = b""
        while chunk := read(terminal):
            shown += chunk
    assert done.stdout == b""
    assert [re.search(rf"{step}, \d+ s\r\n", shown.decode()) is not None for step in steps] == [True] * 3
    assert b" ..." not in shown.partition(b"step")[2]


def read(terminal: FileIO) -> bytes:
    """What the terminal got; nothing at its end, which Linux reports as an error."""
    try:
        return terminal.read(4096) or b""
    except OSError:
        return b""
