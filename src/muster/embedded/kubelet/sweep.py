"""Finds and ends leftover processes of a cluster by the markers in their environment."""

from __future__ import annotations

import contextlib
import os
import time

from muster.embedded.kubelet.containers.cgroups import remove_control_groups
from muster.embedded.kubelet.containers.process import SHIMS, spawning
from muster.embedded.kubelet.containers.shim import descendants, kill_process, process_table
from muster.trainingjobs.supervisor.attempts.leftovers import SHARED_MEMORY, mapped_files

CLUSTER_MARKER = "MUSTER_CLUSTER_ID"
NODE_MARKER = "MUSTER_NODE_NAME"
POD_MARKER = "MUSTER_POD_UID"
CONTAINER_MARKER = "MUSTER_CONTAINER_ID"
TIMEOUT_S = 10.0


class SweepError(Exception):
    """Processes still exist after SIGKILL: they are in uninterruptible sleep, or belong to another user."""


def sweep(cluster_id: str, node: str | None = None, *, pod_uid: str = "", container_id: str = "") -> int:
    """Kill all processes of a cluster's pods (or of one node, pod or container), with their descendants.

    Processes are found by the environment they were started with (/proc/PID/environ) and killed by pid and start
    time, never by pid alone. Blocks until they are gone. Control groups of theirs go too, and the shared memory that
    only they had mapped: pods here share the machine's, and nothing else would ever free it.

    Returns:
        The number of killed processes.

    Raises:
        SweepError: some still exist after `TIMEOUT_S` seconds.
    """
    wanted = {CLUSTER_MARKER: cluster_id}
    if node is not None:
        wanted[NODE_MARKER] = node
    if pod_uid:
        wanted[POD_MARKER] = pod_uid
    if container_id:
        wanted[CONTAINER_MARKER] = container_id
    marks = {f"{name}={value}".encode() for name, value in wanted.items()}
    killed: set[tuple[int, int]] = set()
    segments: set[str] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        table = process_table()
        marked = {pid for pid in table if pid != os.getpid() and _carries(pid, marks)}
        found = marked | descendants(marked, table) - {os.getpid()}
        if not found:
            if segments:
                _remove(segments - {path for pid in table for path in mapped_files(pid, SHARED_MEMORY)})
            if not pod_uid and not container_id:
                remove_control_groups(cluster_id, node)
            return len(killed)
        if time.monotonic() > deadline:
            raise SweepError(f"still there after SIGKILL: processes {', '.join(map(str, sorted(found)))}")
        for pid in found:
            segments |= mapped_files(pid, SHARED_MEMORY)
            killed.add((pid, table[pid][1]))
            kill_process(pid, table[pid][1])
        time.sleep(0.005)


def _remove(segments: set[str]) -> None:
    for path in segments:
        with contextlib.suppress(OSError):
            os.unlink(path)


def end_orphans() -> None:
    """Kill and reap children of this process that are not shims: this subreaper inherits them from killed shims."""
    if spawning() or _children() <= SHIMS:
        return
    for pid, (parent, started) in process_table().items():
        if parent == os.getpid() and pid not in SHIMS:
            kill_process(pid, started)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    """This process's children: from /proc/PID/task/TID/children (proc(5)), else by looking at every process."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return {pid for pid, (parent, _) in process_table().items() if parent == os.getpid()}
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/children") as file:
            found |= {int(pid) for pid in file.read().split()}
    return found


def _carries(pid: int, marks: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marks <= set(file.read().split(b"\0"))
    except OSError:
        return False
