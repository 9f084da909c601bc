"""The programs an embedded cluster is made of, and how each is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.embedded.kubelet.sweep import CLUSTER_MARKER
from muster.embedded.layout import ClusterSpec, Layout

APISERVER, CONTROLLER = "apiserver", "controller"
NODES_PER_RACK = 4
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
            f"--kubeconfig={layout.kubeconfig}",
        ],
    )


def controller(layout: Layout, spec: ClusterSpec, kubeconfig: Path | None = None) -> Program:
    """The controllers; `kubeconfig` says as whom, the administrator where not given."""
    return Program(
        CONTROLLER,
        [
            *_module("muster.cli.main"),
            "controller",
            f"--kubeconfig={kubeconfig or layout.kubeconfig}",
            f"--listen=127.0.0.1:{spec.supervise_port}",
            f"--url=https://127.0.0.1:{spec.supervise_port}",
            f"--health=127.0.0.1:{spec.health_port}",
        ],
    )


def kubelet(layout: Layout, spec: ClusterSpec, number: int) -> Program:
    """The kubelet of node `number`."""
    name = spec.node_names()[number]
    labels = {LABEL_ZONE: "local", LABEL_RACK: f"rack-{number // NODES_PER_RACK}"}
    return Program(
        name,
        [
            *_module("muster.embedded.kubelet"),
            f"--node={name}",
            f"--kubeconfig={layout.kubeconfig}",
            f"--state-dir={layout.node(name)}",
            f"--cluster-id={spec.cluster_id}",
            f"--index={number}",
            f"--gpus={spec.gpus}",
            f"--cpus={spec.cpus}",
            f"--memory={spec.memory_gib}Gi",
            f"--network={spec.network}",
            *(f"--label={key}={value}" for key, value in labels.items()),
        ],
    )


def environment(spec: ClusterSpec) -> dict[str, str]:
    """The environment of every program: ours, this installation's Python and MPI first, and the cluster's mark."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": f"{_OUR_BIN}:{path}", CLUSTER_MARKER: spec.cluster_id, "PYTHONUNBUFFERED": "1"}


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
