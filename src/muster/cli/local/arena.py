"""Temporary clusters for a demo; removed completely at the end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from muster.cli.errors import CliError
from muster.cli.target import Cluster
from muster.embedded import cluster as embedded
from muster.embedded.layout import ClusterSpec, Layout

OnStage = Callable[[str], None]
NODE_GRACE_S = 8.0


class Arena(Protocol):
    """A cluster for a demo with faults. A context manager: the cluster is ready on entry and removed on exit.

    Attributes:
        folder: for files of the demo; removed on exit.
    """

    folder: Path

    def __enter__(self) -> Self:
        """Start the cluster."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster and remove its files."""

    def cluster(self) -> Cluster:
        """Returns how to reach the cluster."""

    def checkpoints(self) -> dict[str, Any]:
        """Returns `spec.checkpoint` for a job of the demo: where it keeps its checkpoints."""

    def kill_rank(self, pod_uid: str) -> int:
        """Kill a rank's process in a pod; returns the rank."""

    def vanish(self, node: str) -> None:
        """Make a node vanish."""

    def logs(self) -> list[Path]:
        """The logs of its programs."""


class EmbeddedArena:
    """An embedded cluster of its own, in a temporary folder."""

    def __init__(self, nodes: int, gpus: int, on_stage: OnStage) -> None:
        """Nothing runs yet."""
        self.folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
        self._layout = Layout(self.folder / "cluster")
        self._spec = ClusterSpec(name="demo", nodes=nodes, gpus=gpus, node_grace_s=NODE_GRACE_S)
        self._on_stage = on_stage

    def __enter__(self) -> Self:
        """Start the cluster and wait until it is ready."""
        try:
            self._spec = embedded.start(self._layout, self._spec, self._on_stage)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster and remove the folder. A second Ctrl-C does not interrupt this."""
        with undisturbed():
            embedded.stop(self._layout)
            shutil.rmtree(self.folder)

    def cluster(self) -> Cluster:
        """Returns how to reach the cluster as its administrator."""
        from muster.kube.connection.config import load_config

        return Cluster(load_config(self._layout.kubeconfig), "default", "an embedded cluster", self._layout)

    def checkpoints(self) -> dict[str, Any]:
        """Returns `spec.checkpoint` for a job of the demo: a folder."""
        folder = self.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        return {"path": str(folder)}

    def kill_rank(self, pod_uid: str) -> int:
        """Kill a rank's process in a pod; returns the rank."""
        return embedded.kill_rank(self._layout, pod_uid)

    def vanish(self, node: str) -> None:
        """Make a node vanish."""
        embedded.vanish(self._layout, node)

    def logs(self) -> list[Path]:
        """The logs of its programs."""
        return sorted(self._layout.logs.glob("*.log"))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while the block runs, so that they do not interrupt the clean-up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def example(name: str) -> Path:
    """Return the folder of an example, from the checkout or else from the installed package. Raises CliError."""
    import muster

    package = Path(muster.__file__).parent
    for folder in (package.parents[1] / "examples" / name, package / "examples" / name):
        if folder.is_dir():
            return folder
    raise CliError(f"the example '{name}' is not installed", "run it from a checkout: make demo")
