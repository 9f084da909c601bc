"""The node cache's process: its arguments, its loops, and its end."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop

from muster.data.cache.disk import Disk, DiskBypassed, Limits
from muster.data.cache.files import Folder, FolderInUse
from muster.data.cache.marks import Marks
from muster.data.cache.node import Node
from muster.data.cache.opening import SCHEMES, drop_ambient_credentials
from muster.data.cache.privacy import forbid_core_dumps
from muster.data.cache.server import Server
from muster.data.cache.session import Session
from muster.data.peers.peering import Peering, TicketKeys
from muster.data.peers.reader_holder import ReaderHolder
from muster.kube.progress import Progress
from muster.kube.running import log_to_stderr, stop_on_signals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

SOCKET: Final = "cache.sock"
CONTROL_SOCKET: Final = "control.sock"
"""In the state folder, because the other socket's folder is mounted into pods, and root in a pod passes its mode."""
_SWEEP_S: Final = 1.0
_STALLED_S: Final = 120.0
_POWERS: Final = "KMGT"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the process."""

    node: str
    state_dir: Path
    socket_dir: Path
    limits: Limits
    memory_bytes: int
    address: str
    read_dir: Path | None
    metrics: tuple[str, int] | None
    ticket_key: Path | None
    socket_marks: bool
    schemes: frozenset[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM. Returns the exit status: 0, or 2 if the arguments or the folder are wrong."""
    options = parse(arguments)
    log_to_stderr()
    drop_ambient_credentials()
    status = 0
    try:
        forbid_core_dumps()
        uvloop.run(run(options))
    except* (FolderInUse, DiskBypassed, OSError) as group:
        for error in group.exceptions:
            print(f"muster node cache: {error}", file=sys.stderr)
        status = 2
    return status


async def run(options: Options) -> None:
    """Serve readers until the process is asked to end. Raises FolderInUse, OSError."""
    stop = stop_on_signals()
    disk = Disk(Folder(options.state_dir, options.read_dir), options.limits)
    await disk.start()
    marks = Marks(options.socket_marks)
    marks.check()
    node = Node(options.node, options.address, disk, options.memory_bytes, options.schemes, marks)
    server = Server(lambda uid, control: Session(node, uid, control))
    peering = Peering(
        options.address,
        TicketKeys(options.ticket_key),
        disk,
        ReaderHolder(node),
        charge=node.accounts.charge,
        pause=node.rates.take,
        mark=node.marks.set,
    )
    node.members = node.downloads.peers = node.peering = peering
    progress = Progress()
    metrics: list[asyncio.Task[None]] = []
    options.socket_dir.mkdir(parents=True, exist_ok=True)
    try:
        async with peering.run(), asyncio.TaskGroup() as tasks:
            if options.metrics is not None:
                from prometheus_client import CollectorRegistry  # with aiohttp a third of the memory

                registry = CollectorRegistry()
                progress = Progress(registry=registry)
                metrics = [tasks.create_task(_serve_metrics(progress, registry, node, server, *options.metrics))]
            running = [
                *metrics,
                tasks.create_task(server.serve(options.socket_dir / SOCKET, 0o666, control=False)),
                tasks.create_task(server.serve(options.state_dir / CONTROL_SOCKET, 0o600, control=True)),
                tasks.create_task(_sweep(disk, progress)),
                tasks.create_task(node.egress.serve()),
            ]
            log.info("node %s serves %s", options.node, options.socket_dir / SOCKET)
            await stop.wait()
            for task in running:
                task.cancel()
    finally:
        await server.close()
        node.close()
    log.info("ends")


async def _sweep(disk: Disk, progress: Progress) -> None:
    progress.expect("sweep", _STALLED_S)
    while True:
        await disk.sweep()
        progress.mark("sweep")
        await asyncio.sleep(_SWEEP_S)


async def _serve_metrics(
    progress: Progress, registry: CollectorRegistry, node: Node, server: Server, host: str, port: int
) -> None:
    from muster.data.cache.metrics import CacheMetrics
    from muster.kube.health import health_app, serve

    registry.register(CacheMetrics(node, lambda: server.connections))
    async with serve(health_app(progress, registry=registry), host, port) as bound:
        log.info("metrics on http://%s:%d/metrics", host, bound)
        await asyncio.Event().wait()


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the arguments. Exits with status 2 if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m muster.data.cache", description="Keep blocks of objects on this node's disk for its readers."
    )
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR", help="where blocks are kept")
    parser.add_argument(
        "--read-dir", type=Path, metavar="DIR", help="the same folder through a read-only mount; readers get it"
    )
    parser.add_argument("--socket-dir", type=Path, required=True, metavar="DIR", help="where the sockets are created")
    parser.add_argument("--size", type=_size, default=_size("100Gi"), help="limit of all blocks (default: 100Gi)")
    parser.add_argument(
        "--floor",
        default="20%",
        type=_floor,
        help="free disk space, in bytes or percent; above the kubelet's eviction thresholds (default: 20%%)",
    )
    parser.add_argument(
        "--memory", type=_size, default=_size("512Mi"), help="for blocks while the disk is not used (default: 512Mi)"
    )
    parser.add_argument("--address", default="", metavar="IP:PORT", help="where peers reach this cache")
    parser.add_argument("--metrics-port", type=int, metavar="P", help="serve /healthz and /metrics on this port")
    parser.add_argument("--metrics-host", default="127.0.0.1", help="on this address (default: 127.0.0.1)")
    parser.add_argument("--ticket-key", type=Path, metavar="FILE", help="public keys that verify tickets of jobs")
    parser.add_argument(
        "--socket-marks",
        action="store_true",
        help="mark sockets per job (SO_MARK): needs NET_ADMIN, in the node's network; refuses stores on its loopback",
    )
    parser.add_argument(
        "--local-stores", action="store_true", help="also serve file:// stores, with the rights of this process"
    )
    given = parser.parse_args(arguments)
    floor_bytes, floor_fraction = given.floor
    return Options(
        node=given.node,
        state_dir=given.state_dir,
        socket_dir=given.socket_dir,
        limits=Limits(size_bytes=given.size, floor_bytes=floor_bytes, floor_fraction=floor_fraction),
        memory_bytes=given.memory,
        address=given.address,
        read_dir=given.read_dir,
        metrics=None if given.metrics_port is None else (given.metrics_host, given.metrics_port),
        ticket_key=given.ticket_key,
        socket_marks=given.socket_marks,
        schemes=frozenset({*SCHEMES, "file"} if given.local_stores else SCHEMES),
    )


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)(?:([kMGT]|[KMGT](?=i))(i?))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 100Gi")
    power = _POWERS.index(found[2].upper()) + 1 if found[2] else 0
    step: int = 1024 if found[3] else 1000
    return int(found[1]) * step**power  # type: ignore[no-any-return]


def _floor(text: str) -> tuple[int, float]:
    if text.endswith("%") and text[:-1].isdigit() and int(text[:-1]) < 100:
        return 0, int(text[:-1]) / 100
    return _size(text), 0.0
