"""The admission policy on a real API server: only tests and DaemonSets tolerate the taint of untested nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.deploy.conftest import Helm, helm_program, offline_helm  # noqa: F401
from tests.scenarios.deploy.test_chart import rendered
from tests.scenarios.preflight.conftest import Trusting
from tests.support.apiserver import Api, ApiServer
from tests.support.waiting import eventually

VALUES = (
    "--set=health.enabled=true,health.preflight.enabled=true",
    "--set=health.preflight.config.image=registry.example/gputest:1",
)
CONTROLLER = "system:serviceaccount:muster-system:muster-controller"
DAEMONS = "system:serviceaccount:kube-system:daemon-set-controller"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


def pod(name: str, *keys: str) -> dict[str, Any]:
    tolerations = [{"key": key, "operator": "Exists"} for key in keys]
    container = {"name": "c", "image": "none"}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "tolerations": tolerations}}


@pytest.mark.parametrize("api_server", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
async def test_only_tests_tolerate_the_taint_of_untested_nodes(
    trusting: Trusting,
    api_server: ApiServer,
    offline_helm: Helm,  # noqa: F811
) -> None:
    api = Api(api_server.kubeconfig)
    pods = f"/api/v1/namespaces/{trusting.namespace}/pods"
    made = [
        each
        for key, each in rendered(offline_helm, *VALUES).items()
        if key[0] in PATHS and key[2] == "muster-preflight"
    ]
    assert len(made) == 2

    def create(user: str, body: dict[str, Any]) -> tuple[int, str]:
        who = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        code, answer, _ = api.send("POST", pods, body, headers=who, dryRun="All")
        return code, str(answer.get("message", ""))

    try:
        for each in made:
            api.create(PATHS[each["kind"]], each)
        wanted = pod("mallory", "muster.dev/preflight")
        eventually("the policy is in force", lambda: create("mallory", wanted)[0] == 403)
        assert "nodes with taint muster.dev/preflight were not tested yet" in create("mallory", wanted)[1]
        assert create("mallory", pod("plain", "example.com/other"))[0] == 201
        assert create(CONTROLLER, wanted)[0] == 201
        assert create(DAEMONS, wanted)[0] == 201

        api.create(pods, pod("kept"))
        more = [
            {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "muster.dev/preflight", "operator": "Exists"}}
        ]
        who = {"Impersonate-User": "mallory", "Impersonate-Group": "system:masters"}
        code, answer, _ = api.send(
            "PATCH", f"{pods}/kept", more, headers=who, content_type="application/json-patch+json"
        )
        assert (code, "were not tested yet" in answer["message"]) == (403, True)
    finally:
        for each in made:
            api.send("DELETE", f"{PATHS[each['kind']]}/{each['metadata']['name']}")
