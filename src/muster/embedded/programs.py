"""The programs of an embedded cluster, with their command lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from muster.api.names import LABEL_RACK, LABEL_ZONE, SYSTEM_NAMESPACE
from muster.controlplane.ports import free_port
from muster.embedded.kubelet.settings import node_address
from muster.embedded.kubelet.sweep import CLUSTER_MARKER
from muster.embedded.layout import ClusterSpec, Layout

APISERVER, CONTROLLER = "apiserver", "controller"
NODES_PER_RACK = 4
CACHE_MIN_BYTES = 64 << 20
"""Smallest size of a node's data cache: two blocks."""
CACHE_FLOOR = "5%"
"""Free space that caches leave on the disk of this machine."""
THIS_MACHINE = "this-machine"
"""The value of `image` in pods. This cluster has no images: a container sees this machine's files."""

_OUR_BIN = str(Path(sys.executable).parent)


class Program(NamedTuple):
    """A program's name in logs and messages, and its command line."""

    name: str
    command: list[str]


def apiserver(layout: Layout, spec: ClusterSpec) -> Program:
    """The API server."""
    return Program(
        APISERVER,
        [
            *_module("muster.embedded.apiserver"),
            f"--state-dir={layout.apiserver}",
            f"--port={spec.port}",
            f"--name={spec.name}",
            f"--node-monitor-grace-s={spec.node_grace_s:g}",
        ],
    )


def controller(spec: ClusterSpec, kubeconfig: Path) -> Program:
    """The controllers, with the account in `kubeconfig`."""
    return Program(
        CONTROLLER,
        [
            *_module("muster.cli.main"),
            "controller",
            f"--kubeconfig={kubeconfig}",
            f"--namespace={SYSTEM_NAMESPACE}",
            f"--listen=127.0.0.1:{spec.supervise_port}",
            f"--advertise-url=https://127.0.0.1:{spec.supervise_port}",
            f"--metrics-listen=127.0.0.1:{spec.health_port}",
            f"--muster-image={THIS_MACHINE}",
            "--teams",
            *(["--cache-volume=hostPath"] if spec.has_caches else []),
        ],
    )


def kubelet(
    spec: ClusterSpec, number: int, kubeconfig: Path, folder: Path, *trust: str, sockets: Path | None = None
) -> Program:
    """The kubelet of node `number`.

    `trust` are its options for clients that may read logs and execute commands, and `sockets` is the folder for the
    socket of the node's data cache.
    """
    name = spec.node_names()[number]
    labels = {LABEL_ZONE: "local", LABEL_RACK: f"rack-{number // NODES_PER_RACK}"}
    return Program(
        name,
        [
            *_module("muster.embedded.kubelet"),
            f"--node={name}",
            f"--kubeconfig={kubeconfig}",
            f"--state-dir={folder}",
            f"--cluster-id={spec.cluster_id}",
            f"--index={number}",
            f"--gpus={spec.gpus}",
            "--cpus=64",
            "--memory=512Gi",
            f"--network={spec.network}",
            f"--lease-period-s={spec.node_grace_s / 4:g}",
            f"--container-log-max-size={spec.container_log_max_size}",
            f"--container-log-max-files={spec.container_log_max_files}",
            *([f"--cache-socket-dir={sockets}"] if sockets else []),
            *trust,
            *(f"--label={key}={value}" for key, value in labels.items()),
        ],
    )


def embedded_kubelet(layout: Layout, spec: ClusterSpec, number: int) -> Program:
    """The kubelet of node `number` of an embedded cluster."""
    trust = (f"--kubelet-token-file={layout.kubelet_token}", f"--serving-ca={layout.apiserver}")
    name = spec.node_names()[number]
    sockets = layout.cache(name).sockets
    return kubelet(spec, number, layout.kubeconfig, layout.node(name), *trust, sockets=sockets)


def cache(layout: Layout, spec: ClusterSpec, number: int, ticket_key: Path | None) -> Program:
    """The data cache of node `number`, with the key that verifies tickets of jobs."""
    name, folders = spec.node_names()[number], layout.cache(spec.node_names()[number])
    return Program(
        cache_name(name),
        [
            *_module("muster.data.cache"),
            f"--node={name}",
            f"--state-dir={folders.blocks}",
            f"--socket-dir={folders.sockets}",
            f"--size={spec.cache_size}",
            f"--floor={CACHE_FLOOR}",
            f"--address={node_address(number)}:{free_port(address=node_address(number))}",
            *([f"--ticket-key={ticket_key}"] if ticket_key else []),
        ],
    )


def cache_name(node: str) -> str:
    """The name of a node's cache among the programs."""
    return f"cache-{node}"


def environment(spec: ClusterSpec) -> dict[str, str]:
    """The environment of every program: ours, this installation's Python and MPI first, and the cluster's marker."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": f"{_OUR_BIN}:{path}", CLUSTER_MARKER: spec.cluster_id, "PYTHONUNBUFFERED": "1"}


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
