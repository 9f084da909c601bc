"""Finds processes that use a GPU although their pod is gone, or that belong to no pod.

A process belongs to the pod in its control group. The kubelet keeps a folder for each pod until all of the pod is gone
(kubernetes.io/docs/reference/node/kubelet-files).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from muster.agent.check import Host
from muster.agent.checks.nvmlsample import is_held_without_process
from muster.kube.smallfiles import text_of

_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_OWN_NUMBERS: Final = re.compile(r"^NSpid:\t(.*)$", re.MULTILINE)
_KERNEL_THREADS: Final = ("2", "kthreadd")
_ENDED: Final = frozenset("ZXx")
_NAMED: Final = 4


class Contexts:
    """Looks up processes on a node.

    Args:
        host: the location of /proc and of the kubelet's folder.
    """

    def __init__(self, host: Host) -> None:
        self._proc = host.proc
        self._pods = host.root / "var/lib/kubelet/pods"

    def judge(self, processes: Sequence[int], held_bytes: int) -> dict[str, str]:
        """Return unexpected contexts on one GPU, by code; empty if the host's processes are not visible."""
        if not self._sees_host():
            return {}
        if is_held_without_process(processes, held_bytes):
            return {"leftover-context": f"{held_bytes >> 20} MiB are in use, but no process uses the GPU"}
        gone, foreign = [], []
        for number in processes:
            match self._owner(number):
                case "gone":
                    gone.append(str(number))
                case "foreign":
                    foreign.append(str(number))
        found = {}
        if gone:
            found["leftover-context"] = f"ended, or of pods that are gone: {_some(gone)}"
        if foreign:
            found["foreign-context"] = f"processes of no pod: {_some(foreign)}"
        return found

    def _sees_host(self) -> bool:
        """Return whether the agent is in the host's process namespace: in another one, NVML lists no processes.

        Only in the host's namespace, the kernel's threads are visible and the agent has a single process ID.
        """
        number, name = _KERNEL_THREADS
        own = _OWN_NUMBERS.search(text_of(self._proc / "self/status") or "")
        return text_of(self._proc / number / "comm") == name and own is not None and len(own[1].split()) == 1

    def _owner(self, number: int) -> str:
        folder = self._proc / str(number)
        stat, groups = text_of(folder / "stat"), text_of(folder / "cgroup")
        if stat is None or stat.rpartition(")")[2].strip()[:1] in _ENDED:
            return "gone" if stat is not None or not folder.exists() else "unknown"
        pod = _POD.search(groups or "")
        if pod is None:
            return "foreign" if groups is not None else "unknown"
        uid = pod[1].replace("_", "-")
        return "gone" if self._is_gone(uid) else "pod"

    def _is_gone(self, uid: str) -> bool:
        """Return whether the kubelet has deleted the pod's folder; False if its folders are not readable."""
        try:
            return self._pods.is_dir() and not (self._pods / uid).exists()
        except PermissionError:
            return False


def _some(numbers: Sequence[str]) -> str:
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(numbers[:_NAMED]) + more
