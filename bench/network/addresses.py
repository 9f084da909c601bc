"""python -m bench.network.addresses: the store of addresses, and 150 nodes that start at once.

The store beside host-local, which starts a process for each call and keeps a file for each address. 150 nodes against
a cloud that throttles, in virtual time: random waits beside a retry after a fixed time.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.table import Table

from bench.report import Goal, Report, at_most, emit, spread
from muster.controlplane.goprograms import find_built
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import Block, Family
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import Added, ProviderError
from muster.network.addresses.targets import Targets
from muster.network.addresses.warmpool import WarmPool

PODS: Final = 150
NODES: Final = 150
BUCKET: Final = 50.0
REFILL_S: Final = 5.0
_FIXED_S: Final = 5.0
_ALONE: Final = 20
"""Calls of host-local one after the other."""


@click.command()
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 100), help="Runs of each part.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(repetitions: int, target: str) -> None:
    """Measure the addresses of pods."""
    figures, goals = measure(repetitions)
    table = Table("figure", "value", title=f"{repetitions} runs of each")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    emit(Report("network.addresses", figures, goals), target, [table])


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return the figures and the goals."""
    figures: dict[str, float] = {}
    calls: dict[str, list[float]] = {"reserve_ms": [], "attached_ms": [], "release_ms": [], "parallel_150_ms": []}
    peer: dict[str, list[float]] = {"host_local_add_ms": [], "host_local_150_ms": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            _store(Path(folder) / "one", calls)
            calls["parallel_150_ms"].append(_parallel(Path(folder) / "many"))
            _host_local(Path(folder), peer)
    for name, values in (calls | peer).items():
        spread(name, values, figures)
    waits = {"random": [_start(seed, None) for seed in range(repetitions)], "fixed": [_start(0, _FIXED_S)]}
    for name, runs in waits.items():
        spread(f"start_{name}_s", [seconds for seconds, _ in runs], figures)
        spread(f"start_{name}_requests", [requests for _, requests in runs], figures)
    ideal_s = (2 * NODES - BUCKET) / REFILL_S
    figures["start_ideal_s"] = ideal_s
    figures["parallel_of_host_local"] = round(figures["parallel_150_ms"] / figures["host_local_150_ms"], 3)
    return figures, [
        at_most("150 ADDs / 150 ADDs of host-local", 1.0, figures["parallel_of_host_local"]),
        at_most("start of 150 nodes / the time that the cloud allows", 3.0, figures["start_random_s"] / ideal_s),
    ]


def _key(number: int) -> AttachmentKey:
    return AttachmentKey(f"container-{number}", "eth0")


def _opened(folder: Path) -> Addresses:
    store = Addresses(folder, BootClock())
    store.put_block(Block(cidr="10.0.0.0/24"))
    return store


def _store(folder: Path, calls: dict[str, list[float]]) -> None:
    store = _opened(folder)
    keys = [_key(number) for number in range(PODS)]
    for key in keys:
        calls["reserve_ms"].append(_took_ms(partial(store.reserve, key, PodRef("n", "p", "u"), "/run/netns/x")))
        calls["attached_ms"].append(_took_ms(partial(store.attached, key, "mus0", "02:00:00:00:00:01")))
    for key in keys:
        calls["release_ms"].append(_took_ms(partial(store.release, key)))
    store.close()


def _parallel(folder: Path) -> float:
    """150 ADDs at once, in milliseconds."""
    store = _opened(folder)

    def add(number: int) -> None:
        store.reserve(_key(number), PodRef("n", "p", "u"), "/run/netns/x")
        store.attached(_key(number), "mus0", "02:00:00:00:00:01")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(PODS)]

    def all_of_them() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    took_ms = _took_ms(all_of_them)
    store.close()
    return took_ms


def _host_local(folder: Path, peer: dict[str, list[float]]) -> None:
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}]], "dataDir": str(folder / "ipam")}
    conf = json.dumps({"cniVersion": "1.0.0", "name": "bench", "ipam": ipam}).encode()
    programs = find_built("cni")
    program = str(programs / "host-local")

    def start(number: int) -> subprocess.Popen[bytes]:
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_IFNAME": "eth0",
            "CNI_NETNS": "/x",
            "CNI_PATH": str(programs),
        }
        environment["CNI_CONTAINERID"] = f"container-{number}"
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
        assert process.stdin is not None
        process.stdin.write(conf)
        process.stdin.close()
        return process

    for number in range(_ALONE):
        peer["host_local_add_ms"].append(_took_ms(partial(_run, start, number)))
    running: list[subprocess.Popen[bytes]] = []

    def all_of_them() -> None:
        running.extend(start(_ALONE + number) for number in range(PODS))
        for each in running:
            each.wait()

    peer["host_local_150_ms"].append(_took_ms(all_of_them))
    if any(each.returncode != 0 for each in running):
        raise RuntimeError("host-local refused an address")


def _run(start: Callable[[int], subprocess.Popen[bytes]], number: int) -> None:
    start(number).wait()


class _Cloud:
    """A cloud with a bucket of tokens for all requests, and one block of 16 addresses for each that asks."""

    boot_id = "boot"

    def __init__(self) -> None:
        self.at_s = self._filled_s = 0.0
        self._tokens = BUCKET
        self.requests = self.blocks = 0

    def now_s(self) -> float:
        return self.at_s

    def take(self) -> None:
        self.requests += 1
        self._tokens = min(BUCKET, self._tokens + (self.at_s - self._filled_s) * REFILL_S)
        self._filled_s = self.at_s
        if self._tokens < 1:
            raise ProviderError(Reason.THROTTLED, "too many requests")
        self._tokens -= 1


class _Node:
    """A node's blocks in the cloud."""

    confirm_s = 60.0
    notice = ""

    def __init__(self, cloud: _Cloud) -> None:
        self._cloud = cloud
        self._held: list[Block] = []

    async def look(self, known: Sequence[Block]) -> list[Block]:
        self._cloud.take()
        return self._held

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        self._cloud.take()
        number = self._cloud.blocks = self._cloud.blocks + 1
        self._held.append(Block(cidr=f"10.0.{number >> 4}.{(number & 15) * 16}/28"))
        return Added(tuple(self._held[-1:]))

    async def give_back(self, block: Block) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


def _start(seed: int, fixed_s: float | None) -> tuple[float, float]:
    """Return (virtual seconds until all nodes have addresses, requests)."""
    chance = random.Random(seed)
    cloud = _Cloud()
    with tempfile.TemporaryDirectory() as folder:
        stores = [Addresses(Path(folder) / str(number), cloud) for number in range(NODES)]
        pools = [WarmPool(store, _Node(cloud), Targets(), spread=chance.random) for store in stores]
        queue = [(0.0, number) for number in range(NODES)]
        missing = set(range(NODES))
        while missing:
            cloud.at_s, number = heapq.heappop(queue)
            due_s = asyncio.run(pools[number].step(cloud.at_s))
            if stores[number].status().can_add:
                missing.discard(number)
            elif fixed_s is not None:
                due_s = cloud.at_s + fixed_s
                pools[number]._not_before_s = due_s
            heapq.heappush(queue, (due_s, number))
        for store in stores:
            store.close()
    return cloud.at_s, float(cloud.requests)


def _took_ms(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000


if __name__ == "__main__":
    main()
