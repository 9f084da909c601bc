"""Removes shared memory of killed ranks. Otherwise the shared memory of the pod, which continues, would fill up.

MPICH, Open MPI, NCCL, Python and PyTorch remove their segments only at a normal end. The same is true of Hydra and the
file in which it describes the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

SHARED_MEMORY = "/dev/shm"
TEMPORARY = "/tmp"  # Hydra always writes here and ignores TMPDIR
SEGMENTS = re.compile(
    r"mpich_shm_.*"
    r"|nccl-([A-Za-z0-9]{6}|shm-.*)"  # mkstemp(3); before NCCL 2.13 it named the connection
    r"|(vader|sm)_segment\..*"  # Open MPI
    r"|psm_[0-9a-f]{8}"  # multiprocessing.shared_memory
    r"|torch_\d+_\d+(_\d+)?"  # at::NewProcessWideShmHandle: pid, random number, counter
)
"""Exact names of the libraries' segments. Programs also store checkpoints and data here, such as torch_model.pt."""
_DESCRIPTION, _PROXY = re.compile("hydra_hwloc_xmlfile_.*"), "hydra_pmi_proxy"
_YOUNG_S = 1.0  # a rank (of another job, if pods share the folder) may have just created it and not mapped it yet


def remove_leftovers(since: float, shared_memory: str = SHARED_MEMORY, temporary: str = TEMPORARY) -> list[str]:
    """Remove this user's segments that were created after `since` (seconds since the epoch) and that no process uses.

    A file of Hydra is removed when every proxy that can have written it has ended. Returns the removed paths.
    """
    before = time.time() - _YOUNG_S
    gone = set(_made(shared_memory, SEGMENTS, since, before))
    if gone:
        gone -= _in_use(shared_memory)
    descriptions = _made(temporary, _DESCRIPTION, since, before)
    if descriptions:
        oldest = min(_proxies(), default=float("inf"))
        gone |= {path for path, made in descriptions.items() if made < oldest - _YOUNG_S}
    for path in gone:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return sorted(gone)


def _made(folder: str, names: re.Pattern[str], since: float, before: float) -> dict[str, float]:
    """Return this user's files with such names, and their creation times."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if names.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    # File times are those of the kernel's last tick, slightly behind time.time().
                    if status.st_uid == os.geteuid() and since - _YOUNG_S <= status.st_ctime <= before:
                        found[entry.path] = status.st_ctime
    return found


def mapped_files(pid: int, folder: str) -> set[str]:
    """Paths below the folder that the process has mapped (proc_pid_maps(5)), as far as /proc shows them."""
    mapped: set[str] = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        mapped |= {line.rstrip("\n").split(" ", 5)[-1].strip() for line in file if folder in line}
    return {path for path in mapped if path.startswith(folder + "/")}


def _in_use(folder: str) -> set[str]:
    """Paths below the folder that processes have mapped, and whatever they have open."""
    used = set()
    for pid in _pids():
        used |= mapped_files(pid, folder)
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(f"/proc/{pid}/fd/{handle}"))
    return used


def _proxies() -> list[float]:
    """Returns the start times of Hydra's running proxies, in seconds since the epoch."""
    ticks = os.sysconf("SC_CLK_TCK")
    started = []
    with open("/proc/stat", encoding="ascii") as file:
        booted = next(float(line.split()[1]) for line in file if line.startswith("btime"))
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as process:
            name, _, fields = process.read().rpartition(b")")
            if name.endswith(b"(" + _PROXY.encode()):
                started.append(booted + int(fields.split()[19]) / ticks)
    return started


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
