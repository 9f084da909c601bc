"""The programs of an embedded cluster, with their command lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from muster.api.names import LABEL_RACK, LABEL_ZONE, SYSTEM_NAMESPACE
from muster.embedded.kubelet.sweep import CLUSTER_MARKER
from muster.embedded.layout import ClusterSpec, Layout

APISERVER, CONTROLLER = "apiserver", "controller"
NODES_PER_RACK = 4
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
        ],
    )


def kubelet(spec: ClusterSpec, number: int, kubeconfig: Path, folder: Path, *trust: str) -> Program:
    """The kubelet of node `number`; `trust` are its options for clients that may read logs and execute commands."""
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
            *trust,
            *(f"--label={key}={value}" for key, value in labels.items()),
        ],
    )


def embedded_kubelet(layout: Layout, spec: ClusterSpec, number: int) -> Program:
    """The kubelet of node `number` of an embedded cluster."""
    trust = (f"--kubelet-token-file={layout.kubelet_token}", f"--serving-ca={layout.apiserver}")
    return kubelet(spec, number, layout.kubeconfig, layout.node(spec.node_names()[number]), *trust)


def environment(spec: ClusterSpec) -> dict[str, str]:
    """The environment of every program: ours, this installation's Python and MPI first, and the cluster's marker."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": f"{_OUR_BIN}:{path}", CLUSTER_MARKER: spec.cluster_id, "PYTHONUNBUFFERED": "1"}


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
