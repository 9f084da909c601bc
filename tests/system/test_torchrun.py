"""PyTorch's launcher, where there is a PyTorch: MUSTER_TORCH_PREFIX names a Python environment that holds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import torchjob
from tests.support.musterprogram import carrying, muster_in
from tests.support.supervisor_stub import Node, StubController

PREFIX = os.environ.get("MUSTER_TORCH_PREFIX", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not PREFIX, reason="no PyTorch: set MUSTER_TORCH_PREFIX"),
]

# torchrun of PyTorch 1.13 fails on Python 3.11 with its own default of these two options (0)
ENV = {"PET_REDIRECTS": "1", "PET_TEE": "1", "GLOO_SOCKET_IFNAME": "lo"}


async def start(stub: StubController) -> list[Node]:
    return await stub.start(2, PATH=f"{PREFIX}/bin:/usr/bin:/bin", **ENV)


async def test_ranks_of_all_nodes_form_one_group(tmp_path: Path) -> None:
    program = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK POD_NAME".split()
print("group", int(total), *(os.environ[name] for name in names), flush=True)
dist.destroy_process_group()  # without it, a rank of PyTorch 2 may abort while it exits
"""
    async with StubController(tmp_path) as stub:
        nodes = await start(stub)
        await stub.run(nodes, 1, [f"{PREFIX}/bin/python3", "-c", program], launcher="torchrun", ranks_per_node=2)
        await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished", 120)
        for slot, node in enumerate(nodes):
            lines = sorted(line for line in node.output.splitlines() if line.split()[2:3] == ["group"])
            ranks = [(2 * slot + local, local) for local in range(2)]
            assert lines == [f"[rank {rank}] group 6 {rank} 4 {local} 2 {slot} job-{slot}-1" for rank, local in ranks]
            assert node.latest["exit"]["code"] == 0


async def test_failed_rank_is_reported_instead_of_torchrun(tmp_path: Path) -> None:
    program = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 2: raise ValueError("bad batch")
time.sleep(600)
"""
    async with StubController(tmp_path) as stub:
        nodes = await start(stub)
        await stub.run(nodes, 1, [f"{PREFIX}/bin/python3", "-c", program], launcher="torchrun", ranks_per_node=2)
        await stub.until(lambda: nodes[1].latest["state"] == "finished", "finished", 120)
        failure = nodes[1].latest["exit"]
        assert (failure["rank"], failure["code"], failure["tail"][-1]) == (2, 1, "ValueError: bad batch")
        await stub.hold(nodes, 2)
        assert nodes[0].latest.get("exit") is None


@pytest.mark.parametrize(
    ("deed", "code", "last"),
    [
        ("raise ValueError('no such batch')", 1, "ValueError: no such batch"),
        ("print('cannot go on', file=sys.stderr); raise SystemExit(3)", 3, "cannot go on"),
    ],
)
async def test_a_failed_rank_that_waits_in_its_end_ends_the_attempt(
    tmp_path: Path, deed: str, code: int, last: str
) -> None:
    """Issue 11.3: a thread keeps the failed rank alive, as the destructor of a NCCL process group may; the other
    ranks wait in a collective. Without the hook torchrun sees a rank that runs."""
    program = f"""
import sys, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 3:
    threading.Thread(target=threading.Event().wait).start()
    {deed}
dist.all_reduce(torch.ones(1))
"""
    (tmp_path / "train.py").write_text(program)
    async with StubController(tmp_path) as stub:
        nodes = await start(stub)
        await stub.run(
            nodes, 1, [f"{PREFIX}/bin/python3", str(tmp_path / "train.py")], launcher="torchrun", ranks_per_node=2
        )
        await stub.until(lambda: nodes[1].latest["state"] == "finished", "finished", 120)
        failure = nodes[1].latest["exit"]
        assert (failure["rank"], failure["code"], failure["signal"], failure["reason"]) == (3, code, 0, "rank exited")
        assert failure["tail"][-1] == last
        assert "did not end within 10 s: killed" in nodes[1].output
        await stub.hold(nodes, 2)
        assert nodes[0].latest.get("exit") is None


@pytest.mark.timeout(300)
def test_a_job_saves_with_torch_save_and_continues_after_its_rank_was_killed(tmp_path: Path) -> None:
    """As tests/system/test_gpu.py, without a GPU."""
    command = f"{PREFIX}/bin/python3 train.py"
    with muster_in(tmp_path / "home") as muster:
        muster.work = tmp_path / "work"
        muster.work.mkdir()
        (muster.work / "train.sh").write_text(f"exec {command}\n")
        muster.env["PATH"] = f"{PREFIX}/bin:{muster.env['PATH']}"
        muster.ok("up", "--nodes", "1", "--gpus", "1")

        def ranks() -> list[int]:
            uid = muster.json("status", torchjob.NAME)["metadata"]["uid"]
            return [pid for pid, line in carrying(f"MUSTER_JOB_UID={uid}").items() if line == command]

        env = [f"{name}={value}" for name, value in ENV.items()]
        logs = torchjob.trains_and_continues(muster, "train.sh", "cpu", ranks, *env)
        assert "ended with 300 on the CPU" in logs
