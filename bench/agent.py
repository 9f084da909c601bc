"""What a node's agent costs: memory and CPU over a minute, with TLS, HTTP and, where it is there, NVML loaded.

Then a flood of 800,000 kernel messages: what it costs to read, the most memory and whether all are counted.

The agent is the real program with every check that finds something on this machine. A line is written into
its kernel log each second. It writes to an API server over TLS. Beside it, in the same run, what the usual
client alone costs: a process that imports `muster.kube.client`, connects once and sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Report, at_most, emit
from muster.api.node_health import NodeHealth
from muster.controlplane.children import Child
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from tests.support.apiserver import EmbeddedServer
from tests.support.namespaces import install_kinds
from tests.support.waiting import until

ROOT = Path(__file__).parents[1]
RSS_MB_MAX = 48.0
CPU_PERCENT_MAX = 0.5
NODE = "node-1"
FLOOD = 800_000
LINE = "4,1,{us},-;usb 1-1: new high-speed USB device number {number} using xhci_hcd\n"
LINK = "4,1,{us},-;mlx5_core 0000:5e:00.0 eth1: Link down\n"
XID = "4,1,{us},-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.\n"
PEER = """
import asyncio, sys
from pathlib import Path
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.node import Node
async def main():
    async with Client(load_config(Path(sys.argv[1]))) as client:
        await client.list(Node)
        print("ready", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


class Cost(NamedTuple):
    """Of one process."""

    rss_mb: float
    """Resident, the most that was seen."""
    own_mb: float
    """Memory that it shares with no other process (Private_Clean and Private_Dirty)."""
    cpu_percent: float
    """Of one core."""
    threads: int


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"{pid} is gone")


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def own_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def cpu_s(pid: int) -> float:
    """User and system time, of children that have ended too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


async def cost(child: Child, log: Path | None, seconds: int) -> Cost:
    """Watch a process that has settled, while its kernel log grows by a line a second."""
    began, used = time.monotonic(), cpu_s(child.pid)
    most = 0.0
    for number in range(seconds):
        if log is not None:
            with log.open("a") as file:
                file.write(LINE.format(us=int(time.monotonic() * 1e6), number=number))
        await asyncio.sleep(max(0.0, began + number + 1 - time.monotonic()))
        if child.exit_code is not None:
            raise SystemExit(f"{child.name} ended with {child.exit_code}: {child.log_tail()}")
        most = max(most, rss_mb(child.pid))
    wall = time.monotonic() - began
    return Cost(most, own_mb(child.pid), 100 * (cpu_s(child.pid) - used) / wall, threads(child.pid))


def start_agent(server: EmbeddedServer, folder: Path, log: Path) -> Child:
    settings = folder / "agent.json"
    settings.write_text(json.dumps({"checks": {"kernel-log": {"options": {"file": str(log)}}}}))
    command = [sys.executable, "-m", "muster.agent", f"--node={NODE}", f"--settings={settings}", "--listen=127.0.0.1:0"]
    env = {**os.environ, "KUBECONFIG": str(server.kubeconfig), "PYTHONPATH": str(ROOT / "src"), "MALLOC_ARENA_MAX": "2"}
    return Child(command, folder / "agent.log", env)


def start_peer(server: EmbeddedServer, folder: Path) -> Child:
    command = [sys.executable, "-c", PEER, str(server.kubeconfig)]
    return Child(command, folder / "peer.log", {**os.environ, "PYTHONPATH": str(ROOT / "src")})


async def written(client: Client, check: str) -> int:
    """Returns the sum of the counts of this check's findings in the record."""
    try:
        health = await client.get(NodeHealth, NODE)
    except NotFound:
        return 0
    return sum(each.count for each in health.status.findings if each.check == check)


async def all_counted(client: Client, wanted: int) -> bool:
    return await written(client, "nic") >= wanted


async def flood(client: Client, agent: Child, log: Path) -> Mapping[str, float]:
    """Have the kernel say the same 800,000 times, and wait until the record has counted it."""
    before, counted = cpu_s(agent.pid), await written(client, "nic")
    us = int(time.monotonic() * 1e6)
    with log.open("a") as file:
        file.write(LINK.format(us=us) * FLOOD)
    await until("the flood is counted", lambda: all_counted(client, counted + FLOOD), 300)
    return {
        "flood_lines": await written(client, "nic") - counted,
        "flood_cpu_s": cpu_s(agent.pid) - before,
        "flood_peak_rss_mb": peak_mb(agent.pid),
    }


async def measure(seconds: int) -> tuple[Mapping[str, float], Table]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-agent-") as name:
        folder = Path(name)
        log = folder / "kern.log"
        log.touch()
        server = EmbeddedServer(folder / "server")
        server.start()
        children = []
        try:
            async with Client(load_config(server.kubeconfig)) as client:
                await install_kinds(client)
                await client.create(Node(metadata=ObjectMeta(name=NODE)))
                agent = start_agent(server, folder, log)
                children.append(agent)
                with log.open("a") as file:
                    file.write(XID.format(us=int(time.monotonic() * 1e6)))
                await until("the agent has written", lambda: written(client, "xid"))
                nvml = has_loaded(agent.pid, "libnvidia-ml")
                await asyncio.sleep(15)  # every check has had its first look
                ours = await cost(agent, log, seconds)
                flooded = await flood(client, agent, log)
                peer_child = start_peer(server, folder)
                children.append(peer_child)
                await until("the client is connected", lambda: "ready" in peer_child.log_tail())
                peer = await cost(peer_child, None, 5)
                said = await client.get(NodeHealth, NODE)
        finally:
            for child in children:
                child.stop()
            server.stop()
    figures = {
        "rss_mb": ours.rss_mb,
        "own_mb": ours.own_mb,
        "cpu_percent": ours.cpu_percent,
        "threads": ours.threads,
        "client_alone_rss_mb": peer.rss_mb,
        "nvml_loaded": int(nvml),
        "findings": len(said.status.findings),
        "seconds": seconds,
        **flooded,
    }
    table = Table(
        "", "RSS MB", "its own MB", "% of a core", "threads", title=f"{seconds} s, NVML {'yes' if nvml else 'no'}"
    )
    for name, each in (("agent", ours), ("the usual client, asleep", peer)):
        table.add_row(name, f"{each.rss_mb:.1f}", f"{each.own_mb:.1f}", f"{each.cpu_percent:.2f}", str(each.threads))
    return figures, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--json", default="-", metavar="FILE", help="where the report goes beside stdout")
    options = parser.parse_args()
    figures, table = asyncio.run(measure(options.seconds))
    goals = [
        at_most("RSS, MB", RSS_MB_MAX, figures["rss_mb"]),
        at_most("% of a core", CPU_PERCENT_MAX, figures["cpu_percent"]),
        at_most("RSS in a flood, MB", RSS_MB_MAX, figures["flood_peak_rss_mb"]),
        at_most("lines of a flood lost", 0, FLOOD - figures["flood_lines"]),
    ]
    emit(Report("agent", figures, goals), options.json, [table])


if __name__ == "__main__":
    main()
