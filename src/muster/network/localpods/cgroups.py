"""Finds the cgroups of pods by the names that kubelets give them.

Source: kubelet's cgroup manager (pkg/kubelet/cm/cgroup_manager_linux.go). With the driver `cgroupfs` a pod's cgroup is
`kubepods/[QOS/]podUID`. With `systemd` it is `kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podUID.slice`, where
`_` replaces each `-` of the UID. `--cgroup-root`, and clusters whose nodes are containers, put other folders above.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

UNIFIED: Final = "unified"
"""Where version 2 is on a hybrid host, besides version 1."""
NET_CLS: Final = ("net_cls,net_prio", "net_cls")
_ROOTS: Final = ("kubepods", "kubepods.slice")
"""Ends of names: with a root such as /kubelet the driver `systemd` puts the names of all parents before."""
_CLASSES: Final = ("", "burstable", "besteffort", "guaranteed")
_DEPTH_MAX: Final = 3
_FOLDERS_MAX: Final = 2000
"""Folders that one search for the kubelet's root looks at."""
_SEARCH_AGAIN_S: Final = 1.0
"""Least time between two searches if a root is known: else each pod without a cgroup would search in each reading."""


def unified_root(top: Path) -> Path:
    """Return the root of the hierarchy of version 2: the top, or a folder of a hybrid host."""
    return top if (top / "cgroup.controllers").exists() else top / UNIFIED


class Cgroups:
    """The cgroup hierarchies of a node.

    Args:
        top: the node's /sys/fs/cgroup.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._roots: tuple[str, ...] = ()
        self._searched_s = -_SEARCH_AGAIN_S

    def find(self, uid: str) -> tuple[str, ...]:
        """Return the folders of a pod, relative to the top: that of version 2 first; () if there is none yet."""
        found = tuple(self._candidates(uid, self._roots))
        now_s = time.monotonic()
        if not found and (not self._roots or now_s - self._searched_s >= _SEARCH_AGAIN_S):
            self._searched_s = now_s
            self._roots = tuple(self._kubelet_roots())
            found = tuple(self._candidates(uid, self._roots))
        return found

    def _candidates(self, uid: str, roots: tuple[str, ...]) -> Iterator[str]:
        for root in roots:
            for name in _names(Path(root).name, uid):
                folder = f"{root}/{name}"
                if (self._top / folder).is_dir():
                    yield folder
                    break

    def _kubelet_roots(self) -> Iterator[str]:
        for hierarchy in self._hierarchies():
            yield from _search(self._top, hierarchy)

    def _hierarchies(self) -> Iterator[str]:
        if (self._top / "cgroup.controllers").exists():
            yield ""
            return
        for name in (UNIFIED, *NET_CLS):
            if (self._top / name).is_dir():
                yield name


def _names(root: str, uid: str) -> Iterator[str]:
    """The possible folders of a pod below a root of this name."""
    if root.endswith(".slice"):
        stem, text = root.removesuffix(".slice"), uid.replace("-", "_")
        yield f"{stem}-pod{text}.slice"
        for each in _CLASSES[1:]:
            yield f"{stem}-{each}.slice/{stem}-{each}-pod{text}.slice"
    else:
        for each in _CLASSES:
            yield f"{each}/pod{uid}".lstrip("/")


def _search(top: Path, hierarchy: str) -> Iterator[str]:
    """The kubelets' roots in a hierarchy, breadth first: they are near the top."""
    level, looked = [hierarchy], 0
    for _ in range(_DEPTH_MAX):
        below: list[str] = []
        for folder in level:
            for name in _folders(top / folder):
                looked += 1
                path = f"{folder}/{name}".lstrip("/")
                if name.endswith(_ROOTS):
                    yield path
                elif looked < _FOLDERS_MAX:
                    below.append(path)
        level = below


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return []
