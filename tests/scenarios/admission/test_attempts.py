"""No attempt to get at other teams' nodes gets through: what the chart's policies refuse on a real API server.

The webhook does not run here: whatever it would fill in, or fail to, what is refused is refused without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.admission.attempts import ATTEMPTS, PODS, WORKLOADS, workload
from tests.scenarios.admission.conftest import ANY_TEAM, KEY, MALLORY, Json, World, making_world, team_pod
from tests.scenarios.deploy.conftest import Helm
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def test_there_are_enough() -> None:
    assert len(ATTEMPTS) >= 25


@pytest.mark.parametrize("name", ATTEMPTS)
def test_refused_by_policy(world: World, name: str) -> None:
    """A 403 of a policy, not of RBAC: everybody who tries has the rights for it."""
    code, said = ATTEMPTS[name](world)
    assert code == 403, said
    assert "ValidatingAdmissionPolicy 'muster-teams-" in said["message"], said
    assert "denied request" in said["message"], said
    assert "failed to" not in said["message"], "an expression that cannot be evaluated refuses everything"


@pytest.fixture(scope="module")
def unguarded(control_plane_binaries: Path, offline_helm: Helm) -> Iterator[World]:
    with making_world(control_plane_binaries, offline_helm, policies=False) as made:
        yield made


def test_without_the_policies_each_would_get_through(unguarded: World) -> None:
    """Nothing else refuses them: neither RBAC nor validation."""
    answers = {name: attempt(unguarded) for name, attempt in ATTEMPTS.items()}
    refused = {name: said["message"] for name, (code, said) in answers.items() if code >= 300}
    assert refused == {}


THROUGH_CONTROLLERS = {
    "tolerates-all-keys": ({KEY: "red"}, {"tolerations": [{"operator": "Exists"}]}, "a toleration without a key"),
    "tolerates-any-team": ({KEY: "red"}, {"tolerations": [ANY_TEAM]}, "only borrowers tolerate"),
    "names-its-node": ({}, {"nodeName": "n1"}, "may not name its node"),
    "tolerates-preflight": (
        {},
        {"tolerations": [{"key": "muster.dev/preflight", "operator": "Exists"}]},
        "are not for work yet",
    ),
}


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "StatefulSet", "Job", "DaemonSet"])
@pytest.mark.parametrize("name", THROUGH_CONTROLLERS)
def test_a_controller_does_not_get_it_through_either(world: World, kind: str, name: str) -> None:
    labels, spec, why = THROUGH_CONTROLLERS[name]
    body = workload(kind, labels, spec)
    if kind == "Job":
        body["spec"]["suspend"] = False
    elif kind != "DaemonSet":
        body["spec"]["replicas"] = 1
    if kind == "DaemonSet" and name in ("names-its-node", "tolerates-preflight"):
        pytest.skip(
            "its controller makes no such pods: it writes the name itself, and knows of the nodes' other taints"
        )
    world.made(MALLORY, WORKLOADS[kind], body)
    app = body["metadata"]["name"]
    eventually(f"the {kind}'s controller reports why it has no pods", lambda: why in world.reported(app))
    assert world.pods_of(app) == []


def test_a_pod_of_a_refused_update_is_as_it_was(world: World) -> None:
    body = team_pod("red")
    path = world.made(None, PODS, body)
    before: Json = world.api.get(path)
    code, _ = world.patch(MALLORY, path, {"metadata": {"labels": {KEY: "blue"}}})
    assert code == 403
    assert world.api.get(path)["metadata"]["labels"] == before["metadata"]["labels"]
