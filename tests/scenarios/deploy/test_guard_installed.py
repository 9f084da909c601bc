"""Issue 17 A3: the guard with what the chart gives it, on a real control plane and in front of a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.programs import ControlPlane
from tests.scenarios.deploy.conftest import SYSTEM, Helm
from tests.scenarios.deploy.rights import granted, unused
from tests.scenarios.deploy.test_chart import rendered
from tests.support import guardprocess, prometheus
from tests.support.accessreviews import until_granted
from tests.support.auditlog import AuditLog
from tests.support.guardprocess import Guard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ACCOUNT = f"system:serviceaccount:{SYSTEM}:muster-guard"
RULER, STRANGER = "ruler", "stranger"
Json = dict[str, Any]


class Installed:
    """The control plane with the chart's objects for the guard."""

    def __init__(self, plane: ControlPlane, audit: AuditLog, helm: Helm, upstream: str) -> None:
        self.plane, self.audit = plane, audit
        config = {
            "upstream": {"url": upstream},
            "callers": {
                "cluster": {"callers": [{"name": "rules", "users": [f"system:serviceaccount:{SYSTEM}:{RULER}"]}]}
            },
        }
        values = json.dumps({"guard": {"enabled": True, "config": config}})
        self.objects = rendered(helm, f"--set-json=telemetry={values}")
        shapes = ("Deployment", "PodDisruptionBudget", "Service")
        mine = [each for (kind, _, name), each in self.objects.items() if name == "muster-guard" and kind not in shapes]
        people = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}}
            for name in (RULER, STRANGER)
        ]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
        plane.access.apply(namespace, *mine, *people)
        until_granted(plane.access, ACCOUNT, "create", "tokenreviews")
        self.since = audit.position()

    def get(self, *arguments: str) -> Any:
        return json.loads(self.plane.access.kubectl("get", *arguments, "--output=json"))

    def token(self, account: str, audience: str = "muster-guard") -> dict[str, str]:
        """A token as the kubelet would mount it, as a header."""
        arguments = ("create", "token", account, f"--namespace={SYSTEM}", f"--audience={audience}")
        return {"Authorization": f"Bearer {self.plane.access.kubectl(*arguments).strip()}"}


@pytest.fixture(scope="module")
def installed(
    control_plane_binaries: Path, offline_helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("guard")
    audit = AuditLog(folder)
    with (
        prometheus.running(folder / "prometheus") as upstream,
        ControlPlane(
            control_plane_binaries, controller_manager=False, extra_args={"kube-apiserver": audit.apiserver_arguments}
        ) as plane,
    ):
        yield Installed(plane, audit, offline_helm, upstream.url)


@pytest.fixture(scope="module")
def guard(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    """The container's command with the ConfigMap as a file, as the guard's service account."""
    folder = tmp_path_factory.mktemp("mounted")
    config = folder / "guard.yaml"
    config.write_text(installed.get("configmap", "muster-guard", f"--namespace={SYSTEM}")["data"]["guard.yaml"])
    kubeconfig = installed.plane.access.service_account_kubeconfig(SYSTEM, "muster-guard")
    with guardprocess.running(config, folder / "guard.log", (f"--kubeconfig={kubeconfig}",)) as guard:
        yield guard


def test_tokens_of_the_configured_accounts_are_accepted(installed: Installed, guard: Guard) -> None:
    status, body = guard.query("vector(1)", installed.token(RULER))
    assert (status, body["status"]) == (200, "success")
    assert guard.query("vector(1)", installed.token(STRANGER))[0] == 403
    assert guard.query("vector(1)", installed.token(RULER, "vault"))[0] == 401
    assert guard.query("vector(1)", {"Authorization": "Bearer made-up"})[0] == 401
    assert guard.query("vector(1)")[0] == 401


def test_guard_used_exactly_its_rights(installed: Installed, guard: Guard) -> None:
    """Runs last: it looks at all requests before it."""
    guard.query("vector(1)", installed.token(RULER))
    entries = [entry for entry in installed.audit.entries(installed.since) if entry.user.username == ACCOUNT]
    grants = granted(installed, "muster-guard")  # type: ignore[arg-type]
    assert grants.keys() == {"muster-guard"}
    assert unused(grants["muster-guard"], entries) == []
    assert {(entry.verb, entry.object_ref.what) for entry in entries} == {("create", "tokenreviews")}
    assert not any(entry.forbidden for entry in entries)
