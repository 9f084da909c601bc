"""Access to a cluster as an administrator, through kubectl, and as service accounts with rules of their own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.kube.connection.privatefile import write_private

Rule = Mapping[str, Sequence[str]]


class KubectlError(Exception):
    """A kubectl call failed; `stderr` holds what it said."""

    def __init__(self, arguments: Sequence[str], exit_code: int, stderr: str) -> None:
        """Hold what was called and what came of it."""
        super().__init__(f"kubectl {' '.join(arguments)}: exit {exit_code}: {stderr.strip()}")
        self.exit_code = exit_code
        self.stderr = stderr


class ClusterAccess:
    """A cluster reached through an administrator's kubeconfig.

    Attributes:
        kubeconfig: the administrator's kubeconfig.
        directory: where kubeconfigs made here are written; the caller removes it.
        kubectl_path: the kubectl to call.
    """

    def __init__(self, kubeconfig: Path, directory: Path, kubectl_path: Path) -> None:
        """Nothing is contacted yet."""
        self.kubeconfig = kubeconfig
        self.directory = directory
        self.kubectl_path = kubectl_path

    def kubectl(self, *arguments: str, stdin: str = "", kubeconfig: Path | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl and return its stdout; raises KubectlError on a non-zero exit."""
        done = subprocess.run(
            [str(self.kubectl_path), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": str(self.directory),
                "KUBECONFIG": str(kubeconfig or self.kubeconfig),
                "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            },
        )
        if done.returncode != 0:
            raise KubectlError(arguments, done.returncode, done.stderr)
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects, in order, with one kubectl call."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def service_account_kubeconfig(
        self, namespace: str, name: str, rules: Sequence[Rule] = (), *, duration_s: int = 3600
    ) -> Path:
        """Return a kubeconfig for a service account, made where missing, with a token from the TokenRequest API.

        Args:
            namespace: its namespace, made where missing.
            name: the service account's name.
            rules: RBAC rules granted cluster-wide through a ClusterRole of its own; none leaves RBAC as it is.
            duration_s: how long the token is valid, in seconds; the API server takes 600 at least.
        """
        account = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        objects: list[Mapping[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        ]
        if rules:
            role = f"{namespace}:{name}"
            rbac = "rbac.authorization.k8s.io"
            objects += [
                {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": list(rules)},
                {
                    "apiVersion": f"{rbac}/v1",
                    "kind": "ClusterRoleBinding",
                    "metadata": {"name": role},
                    "subjects": [account],
                    "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
                },
            ]
        self.apply(*objects)
        token = self.kubectl("create", "token", name, "--namespace", namespace, f"--duration={duration_s}s").strip()
        path = self.directory / f"{namespace}-{name}.kubeconfig"
        write_kubeconfig(path, self._cluster(), name, {"token": token}, namespace=namespace)
        return path

    def _cluster(self) -> dict[str, Any]:
        view = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json"))
        cluster: dict[str, Any] = view["clusters"][0]["cluster"]
        return cluster


def write_kubeconfig(
    path: Path, cluster: Mapping[str, Any], user: str, credentials: Mapping[str, str], *, namespace: str = "default"
) -> None:
    """Write a kubeconfig with one cluster, one user and one context, readable by its owner only."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": user, "context": {"cluster": "cluster", "user": user, "namespace": namespace}}],
        "current-context": user,
    }
    write_private(path, json.dumps(document, indent=1).encode())


def inline(pem: bytes) -> str:
    """PEM as kubeconfig's `*-data` fields hold it."""
    return base64.b64encode(pem).decode()
