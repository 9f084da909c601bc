"""The real control plane of a cluster on this machine: programs, and accounts of controller and nodes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from muster.api.names import SYSTEM_NAMESPACE
from muster.controlplane.chart import rendered
from muster.controlplane.clusteraccess import KubectlError, Rule
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.programs import ControlPlane, ControlPlaneError, ControlPlaneUnavailableError, find_binaries
from muster.embedded.layout import ClusterSpec, Layout
from muster.embedded.programs import Program

SERVICE_ACCOUNT, NODE_ACCOUNT = "muster-controller", "process-node"
NODE_RULES: Final[tuple[Rule, ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "create", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch"]},
)
"""The rights that process kubelets need: one account for all nodes of a cluster on one machine."""
_RBAC: Final = "rbac.authorization.k8s.io/"
_CACHES: Final = "data.cache.enabled=true"
_TOKEN_S: Final = 365 * 24 * 3600
"""Lifetime of tokens; new ones are issued at each start of the cluster."""
UNAVAILABLE: Final = (ControlPlaneUnavailableError, NotBuiltError)
FAILED: Final = (*UNAVAILABLE, ControlPlaneError, KubectlError)
"""Further errors that the functions here raise."""


def build() -> None:
    """Build the missing programs of a real control plane. The first build takes minutes; progress goes to stderr.

    Raises:
        ControlPlaneUnavailableError: a program is missing and cannot be built. The message says what to do.
        NotBuiltError: helm is missing and cannot be built.
    """
    find_binaries()
    find_built("helm")


class RealPlane:
    """A control plane whose programs the cluster's daemon keeps running."""

    def __init__(self, layout: Layout, spec: ClusterSpec) -> None:
        """Write missing certificates; starts no program."""
        layout.control_plane.mkdir(mode=0o700, exist_ok=True)
        self._layout = layout
        self._has_caches = spec.has_caches
        self._plane = ControlPlane(
            find_binaries(build=False),
            directory=layout.control_plane,
            extra_args={
                "kube-controller-manager": [
                    f"--node-monitor-grace-period={spec.node_grace_s:g}s",
                    "--node-monitor-period=1s",
                ]
            },
            ports={
                "kube-apiserver": spec.port,
                "etcd": spec.etcd_port,
                "etcd-peer": spec.etcd_peer_port,
                "kube-controller-manager": spec.manager_port,
            },
            durable=True,
        )
        self._plane.prepare()

    def programs(self) -> list[Program]:
        """Return the programs in the order in which they start."""
        return [Program(name, self._plane.command(name)) for name in self._plane.programs]

    def is_ready(self, name: str) -> bool:
        """Return whether a program answers that it is ready."""
        return self._plane.is_ready(name)

    def write_kubeconfig(self) -> None:
        """Write the administrator's kubeconfig into the state folder."""
        self._layout.kubeconfig.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(self._plane.kubeconfig, self._layout.kubeconfig)

    def controller_kubeconfig(self) -> Path:
        """Return a kubeconfig of the controller's service account, with the rights of the chart and no others."""
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": SERVICE_ACCOUNT, "namespace": SYSTEM_NAMESPACE},
        }
        parts, values = (["rbac", "data-cache"], [_CACHES]) if self._has_caches else (["rbac"], [])
        found = rendered(parts, namespace=SYSTEM_NAMESPACE, build=False, values=values)
        rights = [each for each in found if each["apiVersion"].startswith(_RBAC)]
        self._plane.access.apply(account, *rights)
        return self._plane.access.service_account_kubeconfig(SYSTEM_NAMESPACE, SERVICE_ACCOUNT, duration_s=_TOKEN_S)

    def node_kubeconfig(self) -> Path:
        """Return a kubeconfig of the nodes' service account."""
        access = self._plane.access
        return access.service_account_kubeconfig(SYSTEM_NAMESPACE, NODE_ACCOUNT, NODE_RULES, duration_s=_TOKEN_S)

    @property
    def kubelet_trust(self) -> str:
        """The kubelets' option that lets kube-apiserver read logs and execute commands."""
        return f"--client-ca-file={self._plane.ca_path}"
