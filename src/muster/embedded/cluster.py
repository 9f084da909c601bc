"""Starts, inspects and stops embedded clusters, and causes faults in them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from muster.controlplane.ports import free_port, port_in_use
from muster.embedded.control import ControlError, ask
from muster.embedded.kubelet.sweep import sweep
from muster.embedded.layout import ClusterSpec, Layout

START_S = 300.0
STOP_S = 60.0
_TAIL_LINES = 12
_POLL_S = 0.1
_LOCK_S = 0.5
"""How long to try for the lock.

`starting()` takes it for a moment just to see whether it is held; this is longer than that.
"""
_STARTING = "starting the daemon"


class ClusterError(Exception):
    """A cluster cannot be started or stopped. The message says why, and `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Store message and hint."""
        super().__init__(message)
        self.hint = hint


class ClusterConflictError(ClusterError):
    """A conflict: a port is in use, a cluster with other options exists, or the folder has other content."""


class ClusterTimeoutError(ClusterError):
    """A cluster did not become ready in time, or its processes did not end in time."""


class Status(NamedTuple):
    """The state of a cluster.

    Attributes:
        spec: the cluster's shape.
        running: whether the cluster's daemon runs.
        ready: whether the start is complete: each program became ready once. It stays true if a program crashes later.
        stage: the present step of the start, as text.
        programs: state, process ID and number of restarts of each program, by name.
    """

    spec: ClusterSpec
    running: bool
    ready: bool
    stage: str
    programs: dict[str, dict[str, Any]]


def status(layout: Layout) -> Status | None:
    """Return the status of the cluster in a folder; None without a cluster."""
    spec = layout.read_spec()
    if spec is None:
        return None
    if layout.read_daemon() is None:
        return Status(spec, False, False, "not running", {})
    try:
        answer = ask(layout.control_socket, op="status")
    except ControlError:
        return Status(spec, True, False, _STARTING, {})
    return Status(spec, True, answer["ready"], answer["stage"], answer["programs"])


def start(layout: Layout, wanted: ClusterSpec, on_stage: Callable[[str], None] = lambda stage: None) -> ClusterSpec:
    """Start a cluster and wait until it is ready. A stored cluster continues with its objects and jobs.

    If the start of a new cluster fails or is interrupted, everything is removed.

    Args:
        layout: the cluster's folder.
        wanted: the shape of the cluster. For a port of 0, a free port is chosen.
        on_stage: called with a text about each step that the start waits for.

    Returns:
        The shape that the cluster runs with.

    Raises:
        ClusterConflictError: a port is in use, the stored cluster has another shape, the folder has other content, or
            another process starts the cluster.
        ClusterTimeoutError: the cluster was not ready in time.
        ClusterError: a program of the cluster does not start. The message ends with the last lines of that program's
            log.
    """
    stored = layout.read_spec()
    if stored is None:
        _check_folder(layout)
    elif not wanted.same_shape(stored):
        raise ClusterConflictError(
            f"the stored cluster '{stored.name}' has {stored.nodes} nodes with {stored.gpus} GPUs on network "
            f"{stored.network}{' and a real control plane' if stored.real else ''}",
            "remove it first: muster down",
        )
    made = not layout.root.exists()
    layout.root.mkdir(parents=True, exist_ok=True)
    with _alone(layout, _LOCK_S) as alone:
        if not alone or layout.read_spec() != stored:
            raise ClusterConflictError(
                f"another process starts '{wanted.name}' now",
                "run muster up again: it then waits until that start is complete",
            )
        if layout.read_daemon():
            raise ClusterConflictError(f"the cluster '{wanted.name}' is up already")
        try:
            spec = _with_ports(stored.with_limits(wanted) if stored else wanted, wanted.port)
            layout.write_spec(spec)
            _start_daemon(layout)
            _wait_ready(layout, on_stage)
        except BaseException:
            if stored is None:
                remove(layout, folder_too=made)
            else:
                _stop_processes(layout)
            raise
    return spec


def starting(layout: Layout) -> bool:
    """Returns whether a process is executing start() for this folder."""
    if not layout.root.is_dir():
        return False
    with _alone(layout) as alone:
        return not alone


def join(layout: Layout, on_stage: Callable[[str], None] = lambda stage: None) -> ClusterSpec:
    """Wait until a cluster that another process starts, or has started, is ready.

    Args:
        layout: the cluster's folder.
        on_stage: called with a text about each step that the start waits for.

    Returns:
        The shape that the cluster runs with.

    Raises:
        ClusterTimeoutError: the cluster was not ready in time.
        ClusterError: the start failed or was interrupted, or the cluster was removed.
    """
    _wait_ready(layout, on_stage, given_up=lambda: not starting(layout))
    spec = layout.read_spec()
    if spec is None:
        raise ClusterError("the cluster was removed as soon as it was ready")
    return spec


def stop(layout: Layout) -> bool:
    """Stop a cluster in any state and remove all its files and processes. Returns False if there is no cluster.

    Raises:
        ClusterTimeoutError: a process does not end.
    """
    if layout.read_spec() is None:
        return False
    remove(layout)
    return True


def remove(layout: Layout, *, folder_too: bool = True) -> None:
    """End every process of a cluster, and delete its folder. Without `folder_too`, delete only the folder's content."""
    _stop_processes(layout)
    if not layout.root.exists():  # another `muster down` was faster
        return
    if folder_too:
        shutil.rmtree(layout.root)
        return
    for path in layout.root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def vanish(layout: Layout, node: str) -> None:
    """Make a node fail as in a power cut. Raises ControlError."""
    ask(layout.control_socket, timeout_s=30.0, op="vanish", node=node)


def bring_back(layout: Layout, node: str) -> bool:
    """Start a failed node's kubelet again. Returns whether the node had failed. Raises ControlError."""
    return bool(ask(layout.control_socket, op="return", node=node)["vanished"])


def kill_rank(layout: Layout, pod_uid: str, rank: int | None = None) -> int:
    """Kill the process of a rank in a pod, by default of the lowest rank. Returns the rank. Raises ControlError."""
    return int(ask(layout.control_socket, op="kill-rank", podUID=pod_uid, rank=rank)["rank"])


def _check_folder(layout: Layout) -> None:
    if layout.root.exists() and (not layout.root.is_dir() or any(layout.root.iterdir())):
        raise ClusterConflictError(
            f"{layout.root} has other content, so it cannot become a cluster's folder",
            "set MUSTER_STATE_DIR to a folder that is empty or does not exist",
        )


def _with_ports(spec: ClusterSpec, asked: int) -> ClusterSpec:
    """Return the shape with all ports chosen. A requested port must be free."""
    if asked and asked != spec.port:
        spec = msgspec.structs.replace(spec, port=asked)
    if asked and port_in_use(asked):
        raise ClusterConflictError(
            f"port {asked} on 127.0.0.1 is in use", "choose another with --port, or leave it out for a free one"
        )
    chosen: dict[str, int] = {}
    names = ("port", "supervise_port", "health_port")
    for name in (*names, "etcd_port", "etcd_peer_port", "manager_port") if spec.real else names:
        port = getattr(spec, name)
        chosen[name] = free_port(set(chosen.values())) if not port or port_in_use(port) else port
    return msgspec.structs.replace(spec, cluster_id=spec.cluster_id or uuid.uuid4().hex, **chosen)


@contextlib.contextmanager
def _alone(layout: Layout, within_s: float = 0.0) -> Iterator[bool]:
    """Hold the start lock of the folder. Yields False if another process still holds it after `within_s`."""
    folder = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + within_s
    try:
        while not (locked := _locked(folder)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield locked
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_daemon(layout: Layout) -> None:
    """Start the daemon in a new session; its only open file is its log."""
    layout.kubeconfig.unlink(missing_ok=True)  # the API server writes it again when it is ready
    with layout.log("daemon").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "muster.embedded.daemon", f"--state-dir={layout.root}"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_ready(layout: Layout, on_stage: Callable[[str], None], given_up: Callable[[], bool] = lambda: False) -> None:
    """Wait until the daemon is ready.

    While no daemon runs, `given_up` is asked. True means that none will start any more, so the wait fails.
    """
    deadline = time.monotonic() + START_S
    seen = False
    while True:
        current = status(layout)
        if current is None:
            raise ClusterError("the cluster was removed while it started")
        if current.ready:
            return
        if not current.running and (seen or given_up()):
            raise ClusterError(f"the cluster did not start: {_log_tail(layout)}")
        seen = seen or current.running
        on_stage(current.stage if current.running else _STARTING)
        if time.monotonic() > deadline:
            raise ClusterTimeoutError(f"the cluster was not ready after {START_S:.0f} s: {current.stage}")
        time.sleep(_POLL_S)


def _log_tail(layout: Layout) -> str:
    with contextlib.suppress(OSError):
        text = layout.log("daemon").read_text(errors="replace").splitlines()
        start = max((at for at, line in enumerate(text) if line.startswith("cannot start: ")), default=-_TAIL_LINES)
        return "\n".join(text[start:][:_TAIL_LINES]).removeprefix("cannot start: ")
    return "it wrote nothing"


def _stop_processes(layout: Layout) -> None:
    """End the daemon, its programs and all processes of pods."""
    spec = layout.read_spec()
    daemon = layout.read_daemon()
    deadline = time.monotonic() + STOP_S
    if daemon:
        daemon.signal(signal.SIGTERM)
        while daemon.alive and time.monotonic() < deadline:
            _reap(daemon.pid)
            time.sleep(_POLL_S / 2)
        daemon.signal(signal.SIGKILL)
    # The programs of a killed daemon end with it, but possibly a little later.
    for process in layout.read_children().values():
        process.signal(signal.SIGKILL)
    while layout.read_children() or (daemon and daemon.alive):
        if time.monotonic() > deadline:
            left = ", ".join(layout.read_children()) or "the daemon"
            raise ClusterTimeoutError(f"still running after {STOP_S:.0f} s: {left}")
        time.sleep(_POLL_S / 2)
    if spec and spec.cluster_id:
        sweep(spec.cluster_id)


def _reap(pid: int) -> None:
    """Reap the daemon if it is a child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
