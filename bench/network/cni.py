"""python -m bench.network.cni: ADD and DEL of the CNI plugin beside the CNI project's own plugins, in one run.

Each call starts the plugin as a runtime does: in the node's network namespace, for a namespace of a pod. The plugins
take turns, so that the load of the machine is the same for all. The peers keep their addresses with host-local. All
namespaces belong to this run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import click
from rich.table import Table

from bench.report import Goal, Report, at_most, emit
from muster.network.addresses.block import Family
from tests.support.cninode import CniNode
from tests.support.networknamespaces import Namespace, Network

_OURS: Final = "muster"
_CALLS: Final = 20
"""Of each plugin and verb in a repetition."""


@click.command()
@click.option(
    "--repetitions", default=100, show_default=True, type=click.IntRange(2, 5000), help="Calls of each plugin."
)
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(repetitions: int, target: str) -> None:
    """Measure ADD and DEL."""
    figures, goals = measure(repetitions)
    table = Table(
        "plugin", "ADD p50, ms", "ADD p99", "DEL p50", "DEL p99", title=f"{_CALLS * repetitions} calls of each"
    )
    for name in _configurations(Path(), Path()):
        row = [f"{figures[f'{name}_{verb}_{each}_ms']:.1f}" for verb in ("add", "del") for each in ("p50", "p99")]
        table.add_row(name, *row)
    emit(Report("network.cni", figures, goals), target, [table])


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return percentiles of all calls, in milliseconds, and the goals."""
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, Network() as network:
        node = CniNode(network, Path(folder) / "node", families=(Family.IPV4,), cooldown_s=0.0)
        configurations = _configurations(node.socket, Path(folder))
        with _daemon(node):
            numbers = itertools.count()
            for _ in range(_CALLS * repetitions):
                for name, conf in configurations.items():
                    with Network() as own:
                        pod, container = own.namespace("pod"), f"{name}-{next(numbers)}"
                        for verb in ("ADD", "DEL"):
                            took_s = node.node.host.call(_call, node.plugins, conf, verb, container, pod)
                            samples.setdefault(f"{name}_{verb.lower()}", []).append(took_s * 1000)
    figures: dict[str, float] = {}
    for name, values in samples.items():
        cuts = quantiles(values, n=100, method="inclusive")
        figures[f"{name}_p50_ms"], figures[f"{name}_p99_ms"] = round(cuts[49], 2), round(cuts[98], 2)
    figures["add_of_bridge"] = round(figures[f"{_OURS}_add_p50_ms"] / figures["bridge_add_p50_ms"], 3)
    figures["del_of_bridge"] = round(figures[f"{_OURS}_del_p50_ms"] / figures["bridge_del_p50_ms"], 3)
    return figures, [at_most("ADD p50 / ADD p50 of bridge", 1 / 3, figures["add_of_bridge"])]


def _configurations(socket: Path, folder: Path) -> dict[str, dict[str, Any]]:
    def ipam(subnet: str) -> dict[str, Any]:
        ranges = [[{"subnet": subnet}]]
        return {
            "type": "host-local",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(folder / "ipam"),
        }

    return {
        _OURS: {"type": "muster-cni", "socket": str(socket)},
        "bridge": {"type": "bridge", "bridge": "br0", "isGateway": True, "ipam": ipam("10.51.0.0/20")},
        "ptp": {"type": "ptp", "ipam": ipam("10.52.0.0/20")},
        "macvlan": {"type": "macvlan", "master": "eth0", "ipam": ipam("10.53.0.0/20")},
    }


def _call(plugins: Path, conf: dict[str, Any], verb: str, container: str, pod: Namespace) -> float:
    text = json.dumps({"cniVersion": "1.0.0", "name": f"bench-{conf['type']}", **conf})
    environment = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": pod.path,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(plugins),
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(text.encode())
        given.seek(0)
        redirected = [(os.POSIX_SPAWN_DUP2, given.fileno(), 0), (os.POSIX_SPAWN_DUP2, printed.fileno(), 1)]
        program = str(plugins / conf["type"])
        began_s = time.perf_counter()
        process = os.posix_spawn(program, [program], environment, file_actions=redirected)
        _, status = os.waitpid(process, 0)
        took_s = time.perf_counter() - began_s
        if status != 0:
            printed.seek(0)
            raise click.ClickException(f"{verb} of {conf['type']}: {printed.read().decode()}")
    return took_s


@contextlib.contextmanager
def _daemon(node: CniNode) -> Iterator[None]:
    """Run the daemon in a process of its own, in the node's network namespace."""
    node.store.close()
    reader, writer = os.pipe()

    def fork() -> int:
        child = os.fork()
        if child:
            return child
        try:
            node.restart_here()
            os.write(writer, b"started")
            signal.pause()
        finally:
            os._exit(1)

    child = node.node.host.call(fork)
    os.close(writer)
    try:
        if os.read(reader, 100) != b"started":
            raise click.ClickException("the daemon did not start")
        yield
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
