"""Sums over all GPUs of one or several nodes, compared with known sums: one process for each GPU.

The bus bandwidth is as in nccl-tests (doc/PERFORMANCE.md): 2 (n-1)/n of the bytes of each rank, divided by the time.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from statistics import median
from subprocess import DEVNULL, PIPE, Popen

import msgspec

from muster.gputest.backend import Device
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.figures import GB
from muster.gputest.wire import RankPlan, RankResult

ELEMENT_BYTES = 4
_ROUNDS = 5
_TIMEOUT_SHARE = 0.8
"""Share of the deadline for the ranks' timeout: ranks that do not meet report it themselves, instead of a hang."""
_LOOPBACK = "127.0.0.1"


def run(context: Context) -> None:
    """Test within the node."""
    devices = context.backend.devices()
    if len(devices) < 2:
        context.skip("there is one GPU only")
        return
    with held_port() as port:
        _run(context, devices, _LOOPBACK, port, 0, len(devices), "all_reduce_bus_gb_per_s")


def run_between_nodes(context: Context) -> None:
    """Test with the other nodes of the rendezvous, which must begin within this test's deadline."""
    meeting = context.setup.rendezvous
    if meeting is None:
        context.skip("no other nodes: MASTER_ADDR, MASTER_PORT, NODE_RANK and NNODES are not set")
        return
    devices = context.backend.devices()
    first, ranks = meeting.node_rank * len(devices), meeting.nodes * len(devices)
    figure = "cross_node_all_reduce_bus_gb_per_s"
    _run(context, devices, meeting.address, meeting.port, first, ranks, figure)


def _run(
    context: Context, devices: tuple[Device, ...], address: str, port: int, first: int, ranks: int, figure: str
) -> None:
    size = context.sizes.reduce_bytes
    plans = [
        RankPlan(
            setup=context.setup,
            device=device.index,
            rank=first + place,
            ranks=ranks,
            address=address,
            port=port,
            count=size // ELEMENT_BYTES,
            rounds=_ROUNDS,
            timeout_s=context.request.deadline_s * _TIMEOUT_SHARE,
        )
        for place, device in enumerate(devices)
    ]
    for device in devices:
        context.say(device, "all-reduce")
    # In this process's group, which is killed as a whole.
    command = [sys.executable, "-m", "muster.gputest.rank"]
    processes = [Popen([*command, msgspec.json.encode(plan).decode()], stdin=DEVNULL, stdout=PIPE) for plan in plans]
    slowest: list[float] = []
    with ThreadPoolExecutor(len(processes)) as pool:
        waiting = {pool.submit(process.communicate): place for place, process in enumerate(processes)}
        for ended in as_completed(waiting):
            device, process = devices[waiting[ended]], processes[waiting[ended]]
            result = _result(ended.result()[0], process.returncode)
            if result.error:
                context.fail(device, Code.RANK_FAILED, result.error)
                for other in processes:
                    other.kill()  # they would wait for this one
                return
            if result.wrong:
                context.fail(device, Code.WRONG_SUM, result.wrong)
            slowest.append(median(result.seconds))
            context.say(device, "")
    context.figure(None, figure, 2 * (ranks - 1) / ranks * size / GB / max(slowest))


def _result(output: bytes, code: int) -> RankResult:
    """Parse a rank's output."""
    try:
        return msgspec.json.decode(output, type=RankResult)
    except msgspec.DecodeError:
        return RankResult(error=f"the rank's process ended with exit code {code}")


@contextmanager
def held_port() -> Iterator[int]:
    """Choose a port of the loopback interface, and keep it from all that ask for any port until the context ends.

    A rank that listens on it sets SO_REUSEADDR, as PyTorch and Python's servers do (socket(7)).
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        yield holder.getsockname()[1]
