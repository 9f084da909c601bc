"""The admission policy on a real API server: a TrainingJob names its submitter truthfully, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.deploy.conftest import Helm, helm_program, offline_helm  # noqa: F401
from tests.scenarios.deploy.test_chart import rendered
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.apiserver import Api, ApiServer
from tests.support.waiting import eventually

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
SUBMITTER = "muster.dev/submitter"
ANN = {"Impersonate-User": "ann", "Impersonate-Group": "system:masters"}


def job(name: str, submitter: str | None) -> dict[str, Any]:
    notes = {} if submitter is None else {SUBMITTER: submitter}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"replicas": 1, "image": "none", "command": ["true"]},
    }


@pytest.mark.parametrize("api_server", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
async def test_no_user_submits_or_changes_a_job_in_the_name_of_another(
    cluster: Cluster,
    api_server: ApiServer,
    offline_helm: Helm,  # noqa: F811
) -> None:
    api = Api(api_server.kubeconfig)
    jobs = f"/apis/muster.dev/v1alpha1/namespaces/{cluster.namespace}/trainingjobs"
    made = [each for key, each in rendered(offline_helm).items() if key[0] in PATHS and key[2] == "muster-submitters"]
    assert len(made) == 2

    def create(name: str, submitter: str | None, **options: str) -> tuple[int, str]:
        code, answer, _ = api.send("POST", jobs, job(name, submitter), headers=ANN, **options)
        return code, str(answer.get("message", ""))

    def patch(name: str, notes: dict[str, str | None]) -> tuple[int, str]:
        body = {"metadata": {"annotations": notes}}
        code, answer, _ = api.send(
            "PATCH", f"{jobs}/{name}", body, headers=ANN, content_type="application/merge-patch+json"
        )
        return code, str(answer.get("message", ""))

    try:
        for each in made:
            api.create(PATHS[each["kind"]], each)
        eventually("the policy is in force", lambda: create("forged", "bob", dryRun="All")[0] == 403)
        assert "must be ann, the user who creates the job" in create("forged", "bob")[1]
        assert create("forged", "")[0] == 403
        assert create("named", "ann")[0] == 201
        assert create("unnamed", None)[0] == 201
        for name, notes in (
            ("named", {SUBMITTER: "bob"}),
            ("named", {SUBMITTER: None}),
            ("unnamed", {SUBMITTER: "ann"}),
        ):
            code, said = patch(name, notes)  # type: ignore[arg-type]
            assert (code, "cannot be changed" in said) == (403, True), (name, notes, said)
        assert patch("named", {"example.com/other": "x"})[0] == 200
    finally:
        for each in made:
            api.send("DELETE", f"{PATHS[each['kind']]}/{each['metadata']['name']}")
