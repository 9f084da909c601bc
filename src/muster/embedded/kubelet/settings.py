"""Settings of one kubelet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.kube.objects.node import Taint

FIRST_OCTET = 10
"""Node K has the address 127.(10+K).0.1. Pods are in 127.(10+K).0.0/16, but with `--network netns` in 10.(10+K).0.0/16.
"""
LOG_MIN_BYTES = 64 << 10
"""The smallest size of a container's log: a part of a line (16 KiB) always fits."""
LOG_MIN_FILES = 2
"""The kubelet refuses fewer: one file is written, and one rotated file is kept."""


def node_address(index: int) -> str:
    """The address of node `index` of a cluster on this machine."""
    return f"127.{FIRST_OCTET + index}.0.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A node and how its pods run.

    Attributes:
        node: its name.
        cluster_id: what every process of its pods carries in MUSTER_CLUSTER_ID.
        state_dir: where pods' folders and logs lie; outlives the kubelet.
        address: the node's address; the kubelet's server listens there.
        port: the server's port; 0 takes a free one.
        pod_cidr: the range pods' addresses come from.
        network: `host` (addresses of this machine's loopback) or `netns` (a network namespace for each pod).
        gpus: how many GPUs the node has, as `gpu_resource`.
        cpus, memory: other capacity, as quantities.
        max_pods: how many pods it takes.
        labels, taints: what the node registers with.
        lease_period_s: how often the lease is renewed, in seconds.
        status_period_s: how often an unchanged node status is reported, in seconds.
        sync_period_s: how often contents of volumes are looked at again, in seconds.
        new_boot: pretend that the machine was booted: a new boot ID.
        token_file: a client with this bearer token may read logs and execute commands.
        client_ca_file, client_names: so may a client certificate of that authority with one of these common names.
        serving_ca: the folder of the authority (ca.crt, ca.key) that signs the server's certificate; None for one of
            its own.
        pod_pids_limit: how many processes a container may have, where control groups allow; 0 for no limit.
        restart_backoff_s: the first delay of CrashLoopBackOff, in seconds.
        container_log_max_bytes: the size at which a container's log is rotated, in bytes.
        container_log_max_files: how many files of a container's log are kept, the current one included; at least 2.
        cache_socket_dir: where the socket of this node's data cache is; several nodes share this machine's own path.
    """

    node: str
    cluster_id: str
    state_dir: Path
    address: str
    pod_cidr: str
    port: int = 0
    network: str = "host"
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpus: str = "8"
    memory: str = "32Gi"
    max_pods: int = 110
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taints: Sequence[Taint] = ()
    lease_period_s: float = 10.0
    status_period_s: float = 300.0
    sync_period_s: float = 60.0
    new_boot: bool = False
    token_file: Path | None = None
    client_ca_file: Path | None = None
    client_names: Sequence[str] = ("kube-apiserver-kubelet-client",)
    serving_ca: Path | None = None
    pod_pids_limit: int = 0
    restart_backoff_s: float = 10.0
    container_log_max_bytes: int = 10 << 20
    container_log_max_files: int = 5
    cache_socket_dir: Path | None = None

    @property
    def pods_dir(self) -> Path:
        """Returns the parent of the pods' folders; each is named by the pod's UID."""
        return self.state_dir / "pods"
