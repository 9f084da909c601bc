"""`muster demo`: what it promises happens, and nothing of it remains, however it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.controlplane.goprograms import NotBuiltError, find_built
from tests.support.controlplane import REQUIRED
from tests.support.musterprogram import Muster, exit_code, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.timeout(420)]


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        folder = tmp_path / "tmp"
        folder.mkdir()
        muster.env["TMPDIR"] = str(folder)
        yield muster


def nothing_remains(muster: Muster) -> None:
    assert muster.processes() == {}
    assert os.listdir(muster.env["TMPDIR"]) == []
    assert not muster.state.exists()
    assert not muster.kubeconfig.exists()


def test_the_job_survives_a_killed_rank_and_a_lost_node(muster: Muster) -> None:
    done = muster.run("demo", "--json", timeout_s=400)
    assert done.returncode == 0, done
    summary = json.loads(done.stdout)
    assert summary["promises"] == dict.fromkeys(summary["promises"], True), done
    assert summary["slots_kept"] == [4, 3]
    assert [fault["slot"] for fault in summary["faults"]] == [1, 2]
    assert all(fault["time_to_useful_s"] > 0 and fault["stages_s"] for fault in summary["faults"])
    lost = [fault["steps_lost"] for fault in summary["faults"]]
    assert None not in lost, "a checkpoint was there before each fault"  # how many steps depends on the machine's load
    assert summary["steps_lost"] == sum(lost) < summary["steps"]
    nothing_remains(muster)


@pytest.mark.real
def test_the_same_on_a_real_control_plane(muster: Muster, control_plane_binaries: Path) -> None:
    for program in ("helm", "versitygw"):
        try:
            find_built(program, build=False)
        except NotBuiltError as error:
            if REQUIRED and program == "helm":  # nothing else in the suite needs versitygw: .ci/nightly builds it
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
    muster.env["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    done = muster.run("demo", "--real", "--json", timeout_s=400)
    assert done.returncode == 0, done
    summary = json.loads(done.stdout)
    assert summary["promises"] == dict.fromkeys(summary["promises"], True), done
    assert summary["slots_kept"] == [4, 3]
    nothing_remains(muster)


@pytest.mark.parametrize(("number", "after"), [(signal.SIGINT, "waiting for nodes"), (signal.SIGTERM, "Running")])
def test_interrupted_it_leaves_nothing(muster: Muster, number: signal.Signals, after: str) -> None:
    running = muster.start("demo")
    eventually(f"it says {after!r}", lambda: after in running.log.read_text(), 120)
    os.kill(running.pid, number)
    assert exit_code(running, 120) == 130
    nothing_remains(muster)
