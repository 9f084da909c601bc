"""A real NVIDIA GPU: the levels of `muster.gputest` and its drills, the agent's check, and a job that trains on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.check import Host, Setup
from muster.agent.checks.gpu import make
from muster.agent.checks.nvml import Nvml
from muster.gputest.levels import LEVELS
from tests.support import torchjob
from tests.support.musterprogram import carrying, muster_in
from tests.support.realgpu import REAL_GPU
from tests.support.waiting import eventually
from tests.unit.gputest.runs import codes, report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700), REAL_GPU]

SHORTER_S = {1: 140, 2: 175, 3: 300}
"""Budgets: all tests of each level, but levels 2 and 3 repeat their work for less time."""
SINGLE = frozenset({"peers", "all-reduce", "all-reduce-nodes"})
"""Tests that skip a node with one GPU, or without other nodes."""
HOLD = """
import sys, torch
held = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""


def computing() -> list[int]:
    """The processes that use the first GPU."""
    with Nvml() as nvml:
        return list(nvml.processes(nvml.device(0)))


@pytest.fixture
def held_gpu() -> Iterator[int]:
    """The ID of a process that holds 2 GiB of the first GPU."""
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_healthy_gpus_pass(level: int) -> None:
    found = report("--level", str(level), "--budget-s", str(SHORTER_S[level]), timeout_s=600)
    assert found.passed, (found.failures, found.gpus)
    outcomes = {test.name: test.outcome for test in found.tests}
    assert set(outcomes) == {step.test for step in LEVELS[level]}
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} <= SINGLE
    assert found.gpus
    for gpu in found.gpus:
        assert gpu.uuid.startswith("GPU-")
        measured = {"host_to_device_gb_per_s", "device_to_host_gb_per_s", "memory_bandwidth_gb_per_s"}
        assert measured | {"matmul_fp32_tflop_per_s", "matmul_bf16_tflop_per_s"} <= gpu.figures.keys()
    print(found.versions, found.gpus, found.node_figures, [(test.name, test.duration_s) for test in found.tests])


@pytest.mark.parametrize(
    ("fault", "test", "found"),
    [
        ("wrong-result", "memory", {"wrong-word"}),
        ("wrong-result", "transfers", {"wrong-copy"}),
        ("wrong-result", "matmul", {"wrong-product", "not-repeatable"}),
        ("slow", "transfers", {"below-floor"}),  # of models in floors.yaml
        ("hang", "memory", {"hung"}),
    ],
)
def test_drill_is_found(fault: str, test: str, found: set[str]) -> None:
    drilled = report("--inject", fault, "--test", test, "--budget-s", "40", timeout_s=200)
    assert codes(drilled.failures, test) == {(code, drilled.gpus[-1].uuid) for code in found}


def test_a_missing_gpu_is_found() -> None:
    drilled = report("--inject", "missing-gpu")
    assert {each.code for each in drilled.failures} == {"gpu-count"}


def test_a_process_that_holds_the_gpu_is_found(held_gpu: int) -> None:
    found = report("--test", "visibility")
    assert codes(found.failures, "visibility") == {("leftover-process", gpu.uuid) for gpu in found.gpus[:1]}
    assert f"processes hold contexts: {held_gpu}" in [each.message for each in found.failures]


async def test_the_agent_finds_nothing_on_an_idle_gpu_but_a_foreign_process(
    request: pytest.FixtureRequest,
) -> None:
    check = make(Setup(node="n", host=Host()))
    for look in range(6):
        assert list(await check.look(1_000_000 + 30 * look)) == []
    request.getfixturevalue("held_gpu")
    found = [each for look in range(6, 12) for each in await check.look(1_000_000 + 30 * look)]
    assert {(each.check, each.code) for each in found} == {("gpu", "foreign-context")}


def test_a_job_trains_on_it_and_continues_after_its_rank_was_killed(tmp_path: Path) -> None:
    with muster_in(tmp_path / "home") as muster:
        muster.work = tmp_path / "work"
        muster.work.mkdir()
        muster.ok("up", "--nodes", "1", "--gpus", "1")

        def ranks() -> list[int]:
            uid = muster.json("status", torchjob.NAME)["metadata"]["uid"]
            return sorted(carrying(f"MUSTER_JOB_UID={uid}").keys() & set(computing()))

        logs = torchjob.trains_and_continues(muster, "train.py", "cuda", ranks)
        assert "ended with 300 on NVIDIA" in logs
        assert eventually("no process is left on the GPU", lambda: not computing())
