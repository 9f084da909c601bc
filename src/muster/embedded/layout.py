"""The state folder of an embedded cluster: its files, the cluster's shape, and its processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Literal, Self, TypeVar

import msgspec

from muster.kube.connection.config import home_folder
from muster.kube.connection.privatefile import write_private

DEFAULT_NAME = "embedded"
T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of an embedded cluster.

    Attributes:
        name: its name; the kubeconfig context is `muster-<name>`.
        nodes: how many nodes.
        gpus: GPUs each node declares.
        port: port of the API server on 127.0.0.1.
        supervise_port: port of the controller that rank supervisors talk to.
        health_port: port of the controller's health and metrics.
        network: `host` (loopback addresses) or `netns` (a network namespace for each pod).
        cluster_id: what every process of the cluster carries in MUSTER_CLUSTER_ID.
        node_grace_s: silence after which a node counts as lost, in seconds.
        real: whether the cluster has a real control plane (etcd, kube-apiserver, kube-controller-manager).
        etcd_port: port of etcd, of a real control plane.
        etcd_peer_port: port of etcd for others of its kind.
        manager_port: port of kube-controller-manager.
        container_log_max_size: the size at which the log of a container is rotated, a quantity.
        container_log_max_files: how many files of a container's log are kept.
        cache_size: the size limit of each node's data cache, a quantity; `0` for no cache.
    """

    name: str = DEFAULT_NAME
    nodes: int = 4
    gpus: int = 8
    port: int = 0
    supervise_port: int = 0
    health_port: int = 0
    network: Literal["host", "netns"] = "host"
    cluster_id: str = ""
    node_grace_s: float = 10.0
    real: bool = False
    etcd_port: int = 0
    etcd_peer_port: int = 0
    manager_port: int = 0
    container_log_max_size: str = "10Mi"
    container_log_max_files: int = 5
    cache_size: str = "2Gi"

    @property
    def context(self) -> str:
        """The name of its kubeconfig context, cluster and user."""
        return f"muster-{self.name}"

    def node_names(self) -> list[str]:
        """The names of its nodes."""
        return [f"node-{number}" for number in range(self.nodes)]

    def same_shape(self, other: Self) -> bool:
        """Returns whether both have the same nodes and network."""
        mine, theirs = ((each.nodes, each.gpus, each.network, each.real) for each in (self, other))
        return mine == theirs

    @property
    def has_caches(self) -> bool:
        """Returns whether nodes may have a data cache."""
        return self.cache_size != "0"

    def with_limits(self, other: Self) -> Self:
        """Return this shape with the other one's limits of container logs and data caches."""
        return msgspec.structs.replace(
            self,
            container_log_max_size=other.container_log_max_size,
            container_log_max_files=other.container_log_max_files,
            cache_size=other.cache_size,
        )


class ProcessId(msgspec.Struct, frozen=True):
    """A process, identified also by its start time, because process ids are reused.

    Attributes:
        pid: the process id.
        start_ticks: field 22 of /proc/PID/stat, clock ticks since boot (proc(5)).
        boot_id: the boot it belongs to.
    """

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the running process of that id, or None; zombies do not count."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]), Path("/proc/sys/kernel/random/boot_id").read_text().strip())

    @property
    def alive(self) -> bool:
        """Returns whether this process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process. Returns False if it is gone."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


class CacheFolders:
    """The folders of a node's data cache.

    They outlive pods and the kubelet.

    Attributes:
        blocks: the stored blocks.
        sockets: the folder that pods see at `/var/run/muster-cache`. It exists once a pod has asked for the cache.
        socket: the socket that the cache opens for pods.
        control: its socket for operators.
    """

    def __init__(self, root: Path) -> None:
        """Compute the paths, without I/O."""
        self.blocks = root / "blocks"
        self.sockets = root / "run"
        self.socket = self.sockets / "cache.sock"
        self.control = self.blocks / "control.sock"


class Layout:
    """The files of an embedded cluster."""

    def __init__(self, root: Path) -> None:
        """Compute the paths, without I/O."""
        self.root = root.absolute()
        self.logs = self.root / "logs"
        self.spec_file = self.root / "cluster.json"
        self.daemon_file = self.root / "daemon.json"
        self.children_file = self.root / "children.json"
        self.lock_file = self.root / "daemon.lock"
        self.control_socket = self.root / "control.sock"
        self.caches = self.root / "caches"
        self.apiserver = self.root / "apiserver"
        self.kubeconfig = self.apiserver / "kubeconfig"
        self.kubelet_token = self.apiserver / "kubelet-token"

    def node(self, name: str) -> Path:
        """The folder of a node's pods and volumes."""
        return self.root / "nodes" / name

    def cache(self, node: str) -> CacheFolders:
        """The folders of a node's data cache."""
        return CacheFolders(self.caches / node)

    @property
    def control_plane(self) -> Path:
        """The folder of a real control plane: certificates, kubeconfigs and etcd's data."""
        return self.root / "controlplane"

    def log(self, process: str) -> Path:
        """The log of the daemon or one of its children."""
        return self.logs / f"{process}.log"

    def read_spec(self) -> ClusterSpec | None:
        """The stored shape, or None without a cluster."""
        return _read(self.spec_file, ClusterSpec)

    def write_spec(self, spec: ClusterSpec) -> None:
        """Store the shape, and create the folder."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        write_private(self.spec_file, msgspec.json.format(msgspec.json.encode(spec)))

    def read_daemon(self) -> ProcessId | None:
        """Return the daemon's process; None if it does not run."""
        process = _read(self.daemon_file, ProcessId)
        return process if process and process.alive else None

    def read_children(self) -> dict[str, ProcessId]:
        """Return the daemon's running children by name."""
        stored = _read(self.children_file, dict[str, ProcessId]) or {}
        return {name: process for name, process in stored.items() if process.alive}


def default_root(name: str = DEFAULT_NAME) -> Path:
    """The state folder of a cluster of that name: MUSTER_STATE_DIR, else below XDG_STATE_HOME (~/.local/state)."""
    override = os.environ.get("MUSTER_STATE_DIR")
    return Path(override) if override else clusters_root() / name


def clusters_root() -> Path:
    """The folder that holds the state folders of this user's clusters."""
    state = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return Path(state) / "muster"


def valid_name(name: str) -> bool:
    """Returns whether a cluster can have this name: a DNS label of at most 40 characters."""
    return _NAME.fullmatch(name) is not None


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
