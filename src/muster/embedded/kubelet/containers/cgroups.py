"""Limits containers by control groups (version 1 or 2), if this process may create them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids")
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ContainerGroup:
    """The control groups of one container; none without limits."""

    folders: tuple[Path, ...] = ()

    @property
    def join(self) -> list[str]:
        """The files to which a process must write its id."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def out_of_memory(self) -> bool:
        """Returns whether the kernel killed a process of the group because of its memory limit."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError, ValueError):
                    for line in (folder / name).read_text().splitlines():
                        key, _, value = line.partition(" ")
                        if key == "oom_kill" and int(value) > 0:
                            return True
        return False

    def remove(self) -> None:
        """Remove the groups, with retries: the kernel needs a moment after the end of the last process."""
        for folder in self.folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)
                else:
                    break


class ControlGroups:
    """Creates groups below the kubelet's own when the first container has a limit. Logs once if it may not.

    Attributes:
        name: name of the node's group.
    """

    def __init__(self, cluster_id: str, node: str) -> None:
        """Create the manager; `container` creates groups."""
        self.name = _name(cluster_id, node)
        self._bases: dict[str, Path] = {}
        self._unified = False
        self._looked = False

    def container(self, container_id: str, memory_bytes: int, processes: int) -> ContainerGroup:
        """Create the groups of a container with these limits; 0 means unlimited."""
        wanted = {"memory": memory_bytes, "pids": processes}
        folders: list[Path] = []
        if any(wanted.values()) and not self._looked:
            self._look()
        for controller, base in self._bases.items():
            limits = wanted if self._unified else {controller: wanted[controller]}
            if not any(limits.values()):
                continue
            folder = base / container_id
            try:
                folder.mkdir()
                folders.append(folder)
                for each, limit in limits.items():
                    if limit:
                        self._limit(folder, each, limit)
            except OSError as error:
                log.warning("limits of container %s are not enforced: %s", container_id, error)
        return ContainerGroup(tuple(folders))

    def remove(self) -> None:
        """Remove the node's groups."""
        for base in set(self._bases.values()):
            _remove(base)

    def _look(self) -> None:
        """Create a group for the whole node, for each available controller."""
        self._looked = True
        try:
            self._find(self.name)
        except OSError as error:
            self._bases = {}
            log.warning("memory and process limits of containers are not enforced: no control groups (%s)", error)

    def _find(self, name: str) -> None:
        own = _own_groups()
        if (_ROOT / "cgroup.controllers").exists():
            base = _ROOT / own[""] / name
            _enable(base.parent)
            base.mkdir(exist_ok=True)
            _enable(base)
            self._unified = True
            self._bases["memory"] = base
            return
        for controller in _CONTROLLERS:
            parent = _ROOT / controller / own.get(controller, "")
            if controller in own and os.access(parent, os.W_OK):
                (parent / name).mkdir(exist_ok=True)
                self._bases[controller] = parent / name
        if not self._bases:
            raise PermissionError("this user may not make any")

    def _limit(self, folder: Path, controller: str, limit: int) -> None:
        if controller == "pids":
            (folder / "pids.max").write_text(str(limit))
        elif self._unified:
            (folder / "memory.max").write_text(str(limit))
            with contextlib.suppress(OSError):
                (folder / "memory.swap.max").write_text("0")
        else:
            (folder / "memory.limit_in_bytes").write_text(str(limit))


def remove_control_groups(cluster_id: str, node: str | None = None) -> None:
    """Remove empty groups of killed kubelets of a cluster, of one node or of all."""
    pattern = _name(cluster_id, node) if node is not None else f"{_name(cluster_id, '').rpartition('-')[0]}-*"
    own = _own_groups()
    for parent in {_ROOT / own.get("", ""), *(_ROOT / each / own.get(each, "") for each in _CONTROLLERS)}:
        for base in parent.glob(pattern):
            _remove(base)


def _name(cluster_id: str, node: str) -> str:
    return "muster-" + "-".join(hashlib.sha256(text.encode()).hexdigest()[:10] for text in (cluster_id, node))


def _own_groups() -> dict[str, str]:
    """Return this process's group for each controller; "" stands for version 2."""
    own = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                own[controller] = path.lstrip("/")
    return own


def _remove(base: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            if folder.is_dir():
                folder.rmdir()
        base.rmdir()


def _enable(folder: Path) -> None:
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in _CONTROLLERS))
