"""A job that trains with PyTorch and saves with `torch.save`; a test kills its rank, and it continues."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import Muster
from tests.support.waiting import eventually

NAME = "train"
STEPS, SAVE_EVERY = 300, 50
PROGRAM = f"""
import os, time, torch, torch.distributed as dist
import muster

if os.environ["DEVICE"] == "cuda":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
step, last = 0, muster.last_checkpoint()
if last:
    saved = torch.load(last.path, map_location=device)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
print("begins at", step, flush=True)

def write(path):
    torch.save({{"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}, path)

while step < {STEPS}:
    step += 1
    batch = torch.randn(64, 512, device=device)
    loss = torch.nn.functional.mse_loss(net(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    muster.report(step=step, total_steps={STEPS}, metrics={{"loss": loss.item()}})
    time.sleep(0.05)
    if step % {SAVE_EVERY} == 0:
        muster.save_checkpoint(step, write)
print("ended with", step, "on", torch.cuda.get_device_name() if device.type == "cuda" else "the CPU", flush=True)
dist.destroy_process_group()
"""


def trains_and_continues(muster: Muster, script: str, device: str, ranks: Callable[[], list[int]], *env: str) -> str:
    """Runs `script` beside PROGRAM (train.py) on one node, kills its rank after a save, and returns the job's logs.

    Args:
        muster: a running cluster; its working folder gets the program and the checkpoints.
        script: the name of a script in the working folder.
        device: PyTorch's type of device, cpu or cuda.
        ranks: returns the process IDs of the job's ranks that run now.
        env: further variables of the ranks, as NAME=VALUE.
    """
    (muster.work / "train.py").write_text(PROGRAM)
    variables = [option for each in (f"DEVICE={device}", *env) for option in ("--env", each)]
    folder = muster.work.with_name("checkpoints")
    launched = ("--gpus", "1", "--launcher", "torchrun", "--checkpoint", str(folder))
    muster.ok("run", script, "--name", NAME, *launched, *variables)
    try:
        _eventually("the job has saved", muster, lambda status: "lastCheckpoint" in status)
        (rank,) = eventually("one rank runs", lambda: found if len(found := ranks()) == 1 else None)
        os.kill(rank, signal.SIGKILL)
        _eventually("the job has ended", muster, lambda status: status["phase"] == "Succeeded")
        logs = muster.ok("logs", NAME)
        assert f"ended with {STEPS} on " in logs
        assert any(f"begins at {step}" in logs for step in range(SAVE_EVERY, STEPS, SAVE_EVERY))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_said(muster)}") from None
    return logs


def _eventually(what: str, muster: Muster, check: Callable[[dict[str, Any]], bool]) -> None:
    """Waits until the job's status is as wanted; a job that failed does not wait for the deadline."""

    def reached() -> bool:
        status = muster.json("status", NAME)["status"]
        found = check(status)
        assert found or status["phase"] != "Failed", f"the job has failed before: {what}"
        return found

    eventually(what, reached, 120)


def _said(muster: Muster) -> str:
    """What the job's status, its log and, with kubectl, Events say."""
    said = [muster.run("status", NAME), muster.run("logs", NAME, "--tail", "200")]
    with contextlib.suppress(pytest.skip.Exception):
        said.append(muster.run("get", "events", program=kubectl_program()))
    return "\n".join(each.stdout + each.stderr for each in said)
