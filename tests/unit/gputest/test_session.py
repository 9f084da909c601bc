"""Processes that end, and budgets that hold."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import psutil
import pytest

from muster.gputest.levels import LEVELS, plan
from muster.gputest.session import Session
from muster.gputest.wire import Event, Request, Said, Setup
from tests.support.waiting import eventually
from tests.unit.gputest.runs import AMPLE_S


def test_a_worker_that_dies_is_a_finding_and_the_next_test_has_another() -> None:
    killed, before = False, set(psutil.Process().children())

    def kill_at_work(request: Request, event: Event) -> None:
        nonlocal killed
        if not killed and isinstance(event, Said) and event.text == "bandwidth":
            killed = True
            (worker,) = set(psutil.Process().children()) - before
            worker.kill()

    # The device hangs, so the worker is there to be killed.
    session = Session(Setup(backend="cpu:1", fault="hang", level=1, scratch="."), kill_at_work)
    session.run(tuple(Request(test=name, work_s=0, deadline_s=60) for name in ("memory", "visibility")))
    assert [(test.name, test.outcome) for test in session.tests] == [("memory", "crashed"), ("visibility", "passed")]
    (failure,) = session.failures
    assert failure.code == "crashed"
    assert "SIGKILL" in failure.message
    assert set(psutil.Process().children()) <= before


def test_interrupted_run_ends_its_processes() -> None:
    arguments = ("--backend", "cpu:1", "--test", "memory", "--inject", "hang", "--budget-s", "100")
    with subprocess.Popen([sys.executable, "-m", "muster.gputest", *arguments], stdout=subprocess.PIPE) as run:
        (worker,) = eventually("the worker", lambda: psutil.Process(run.pid).children())
        run.terminate()
        assert run.wait(60) == 143
    eventually("the worker ends", lambda: _is_over(worker))


def _is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_user_at_a_terminal_sees_progress() -> None:
    terminal, end = pty.openpty()
    arguments = ("--backend", "cpu:1", "--test", "memory", "--budget-s", str(AMPLE_S))
    command = [sys.executable, "-m", "muster.gputest", *arguments]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, timeout=110)
    os.close(end)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert run.returncode == 0
    assert "memory: " in seen
    assert "\r" in seen
    assert b"\r" not in run.stdout


def test_an_error_in_a_test_is_reported_in_its_own_words() -> None:
    session = Session(Setup(backend="cpu:1", level=1, scratch="/nowhere"), lambda request, event: None)
    session.run((Request(test="disk", work_s=0, deadline_s=60),))
    assert session.tests[0].outcome == "crashed"
    assert "/nowhere" in session.failures[0].message


@pytest.mark.parametrize(("level", "budget_s"), [(1, 140), (2, 350), (3, 1050)])
def test_deadlines_add_up_to_the_budget_of_the_level(level: int, budget_s: float) -> None:
    steps = plan(level)
    assert sum(step.deadline_s for step in steps) <= budget_s
    assert all(step.work_s < step.deadline_s for step in steps)


@pytest.mark.parametrize("level", LEVELS)
def test_a_budget_of_ones_own_is_shared_out(level: int) -> None:
    assert sum(step.deadline_s for step in plan(level, budget_s=7)) == pytest.approx(7)
    (alone,) = plan(level, ["memory"], budget_s=7)
    assert alone.deadline_s == pytest.approx(7)


def test_a_test_of_another_level_is_refused() -> None:
    with pytest.raises(ValueError, match="level 1 has no test sustained"):
        plan(1, ["sustained"])
