"""Node caches of the bench: one process a node, each with a folder, a socket and an address of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from bench.data.processes import ROOT
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from tests.support.waiting import eventually


class NodeCache:
    """A running cache."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        """Start it, and wait until its socket is there."""
        self.folder, self.name, self._options = folder / name, name, options
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.socket = self.folder / "sockets" / "cache.sock"
        self._start()

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._child.pid

    def environment(self) -> dict[str, str]:
        """What a reader needs in its environment."""
        return {"MUSTER_CACHE_SOCKET": str(self.socket)}

    def cpu_s(self) -> float:
        """User and system time of the process until now."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        """Most memory that it has used."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024

    def empty(self) -> None:
        """Start it again without its blocks."""
        self.stop()
        shutil.rmtree(self.folder / "state")
        self._start()

    def stop(self) -> None:
        """End it."""
        self._child.stop()

    def _start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "muster.data.cache",
            f"--node={self.name}",
            f"--state-dir={self.folder / 'state'}",
            f"--socket-dir={self.socket.parent}",
            f"--address={self.address}",
            "--size=20Gi",
            "--floor=1%",
            *self._options,
        ]
        self.socket.unlink(missing_ok=True)
        self._child = Child(command, self.folder / "log", {**os.environ, "PYTHONPATH": str(ROOT / "src")})
        eventually(f"the cache of {self.name} serves its socket", self._serves)

    def _serves(self) -> bool:
        if self._child.exit_code is not None:
            raise SystemExit(f"the cache of {self.name} ended: {self._child.log_tail()}")
        return self.socket.exists()


@contextlib.contextmanager
def node_caches(folder: Path, count: int, *options: str) -> Iterator[list[NodeCache]]:
    """Start one cache a node, and stop them at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(NodeCache(folder, f"node-{number}", *options)) for number in range(count)]
