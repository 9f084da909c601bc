"""A control plane of its own, where each test injects one fault, and runs `muster doctor`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from tests.support.accessreviews import until_granted
from tests.support.musterprogram import MUSTER, Muster

NODES = 12


@dataclasses.dataclass(frozen=True)
class Patient:
    """A cluster that the doctor examines."""

    plane: ControlPlane
    muster: Muster

    def client(self, kubeconfig: Path | None = None) -> Client:
        return Client(load_config(kubeconfig or self.plane.kubeconfig))

    def account(self, name: str, *rules: dict[str, list[str]]) -> Path:
        """Return a kubeconfig of a service account in namespace `agents`, once the API server knows its rights."""
        kubeconfig = self.plane.access.service_account_kubeconfig("agents", name, rules)
        for rule in rules:
            self.until_granted(name, rule)
        return kubeconfig

    def until_granted(self, name: str, rule: dict[str, list[str]], *options: str) -> None:
        """Wait until the API server grants a service account in namespace `agents` the first right of a rule."""
        groups, names = rule.get("apiGroups", [""]), rule.get("resources") or rule["nonResourceURLs"]
        asked = ".".join(filter(None, (names[0], groups[0])))
        until_granted(self.plane.access, f"system:serviceaccount:agents:{name}", rule["verbs"][0], asked, *options)

    def examine(self, window_s: float = 2.0, *arguments: str, kubeconfig: Path | None = None) -> dict[str, Any]:
        """Return the doctor's report."""
        done = self.muster.run(
            "doctor",
            "-o",
            "json",
            f"--window={window_s}",
            f"--kubeconfig={kubeconfig or self.plane.kubeconfig}",
            *arguments,
            program=MUSTER,
        )
        assert done.returncode in (0, 1), done
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == any(each["severity"] == "error" for each in report["findings"])
        return report


@pytest.fixture(scope="module")
def patient(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """A healthy control plane with nodes that have no kubelet."""
    with ControlPlane(control_plane_binaries) as plane:
        nodes = [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}} for number in range(NODES)
        ]
        plane.access.apply(*nodes)
        yield Patient(plane, Muster(tmp_path_factory.mktemp("home")))
