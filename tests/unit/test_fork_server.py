"""Programs that start as copies of a process run as if Python had started them (`tests/support/forkserver.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.forkserver import Copy, fork_server
from tests.support.waiting import TIMEOUT_S, eventually

SHOW = "import os, sys; print(os.getcwd(), os.environ.get('GIVEN'), os.environ.get('TAKEN'), 'muster' in sys.modules)"
DIES = """
import os, pathlib, signal, sys
from tests.support.forkserver import fork_server
from tests.support.waiting import eventually
log = pathlib.Path(sys.argv[1])
program = fork_server().start(log, "timeit", "-n", "1", "print('began', flush=True); import time; time.sleep(600)")
eventually("it runs", lambda: "began" in log.read_text())
print(fork_server().pid, program.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(log: Path, statement: str) -> Copy:
    return fork_server().start(log, "timeit", "-n", "1", "-r", "1", statement)


def test_copy_has_arguments_environment_folder_and_output_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    folder.mkdir()
    log.write_text("before\n")
    monkeypatch.setenv("TAKEN", "yes")
    fork_server()
    monkeypatch.delenv("TAKEN")
    monkeypatch.setenv("GIVEN", "this")
    monkeypatch.chdir(folder)
    assert run(log, SHOW).wait(TIMEOUT_S) == 0
    assert log.read_text().splitlines()[:2] == ["before", f"{folder} this None True"]


def test_exit_codes_are_those_of_the_program_and_of_signals(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert fork_server().start(log, "json.tool", "missing").wait(TIMEOUT_S) == 2
    assert fork_server().start(log, "muster.missing").wait(TIMEOUT_S) == 1
    assert "No module named muster.missing" in log.read_text()
    for end, code in ((Copy.kill, -signal.SIGKILL), (Copy.terminate, -signal.SIGTERM)):
        sleeper = run(log, "import time; print('began', flush=True); time.sleep(600)")
        assert sleeper.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.05)
        end(sleeper)
        assert sleeper.wait(TIMEOUT_S) == code
        end(sleeper)  # which has ended, and whose id may be another's
        assert sleeper.poll() == code


def test_server_and_programs_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIES, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    programs = [Path(f"/proc/{pid}/cmdline") for pid in done.stdout.split()]  # empty for a process that has ended
    assert len(programs) == 2
    eventually("both have ended", lambda: not any(each.exists() and each.read_bytes() for each in programs))


def test_threads_may_ask_at_once_for_the_end_of_a_program(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            program = run(tmp_path / "log", "pass")
            assert set(threads.map(program.wait, [TIMEOUT_S] * 8)) == {0}


@pytest.mark.slow
def test_another_server_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    first = fork_server()
    sleeper = run(tmp_path / "log", "import time; time.sleep(600)")
    os.kill(first.pid, signal.SIGKILL)
    eventually("it has ended", lambda: first.ended)
    sleeper.kill()
    assert sleeper.wait(TIMEOUT_S) == -signal.SIGKILL
    assert run(tmp_path / "log", "pass").wait(TIMEOUT_S) == 0
    assert fork_server().pid != first.pid
