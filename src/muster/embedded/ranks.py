"""Finds the processes of a rank on this machine, to kill them on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from muster.embedded.kubelet.containers.shim import kill_process, process_table
from muster.embedded.kubelet.sweep import POD_MARKER

_RANK_NAMES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
_SUPERVISORS = b"MUSTER_RANK_SOCKET="


def kill_rank(pod_uid: str, rank: int | None = None) -> int | None:
    """Kill (SIGKILL) the process of a pod's lowest rank, or of the given one. Returns the rank; None if none runs.

    A rank's process is the topmost one of the pod whose environment names a rank. The supervisor's own part
    between launcher and rank does not count: killing it looks as if the launcher had stopped the rank.
    """
    table = process_table()
    tops = _rank_processes(pod_uid, table)
    chosen = {number: pid for pid, number in tops.items() if rank in (None, number)}
    if not chosen:
        return None
    number = min(chosen)
    kill_process(chosen[number], table[chosen[number]][1])
    return number


def running_ranks(pod_uid: str) -> list[int]:
    """Return the ranks that run in a pod now, in order."""
    return sorted(_rank_processes(pod_uid, process_table()).values())


def _rank_processes(pod_uid: str, table: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return the rank of each process of a pod that is the topmost one of its rank."""
    mark = f"{POD_MARKER}={pod_uid}".encode()
    ranks: dict[int, int] = {}
    for pid in table:
        entries = _environment(pid)
        if mark in entries and not any(entry.startswith(_SUPERVISORS) for entry in entries):
            number = _rank_of(entries)
            if number is not None:
                ranks[pid] = number
    return {pid: number for pid, number in ranks.items() if table[pid][0] not in ranks}


def _rank_of(entries: set[bytes]) -> int | None:
    for name in _RANK_NAMES:
        prefix = f"{name}=".encode()
        for entry in entries:
            if entry.startswith(prefix) and entry[len(prefix) :].isdigit():
                return int(entry[len(prefix) :])
    return None


def _environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()
