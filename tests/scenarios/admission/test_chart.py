"""The chart's objects about teams: off unless asked for, taken by a real API server, bad values named."""

from __future__ import annotations

import json

import pytest

from tests.scenarios.admission.conftest import ARGUMENTS, SYSTEM, Json, World
from tests.scenarios.deploy.conftest import CHART, Helm
from tests.scenarios.deploy.test_chart import rendered
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

POLICIES = {f"muster-teams-{name}" for name in ("pods", "templates", "bindings", "nodes", "namespaces", "allocation")}

ALWAYS = "muster-submitters"
"""The policy about an annotation that only Muster uses. It does not depend on teams."""


def names(helm: Helm, kind: str, *arguments: str) -> set[str]:
    return {name for each, _, name in rendered(helm, *arguments) if each == kind}


def test_nothing_unless_asked_for(offline_helm: Helm) -> None:
    assert [key for key in rendered(offline_helm) if "teams" in key[2] or "admission" in key[2]] == []


def test_every_policy_has_its_binding(offline_helm: Helm) -> None:
    assert names(offline_helm, "ValidatingAdmissionPolicy", *ARGUMENTS) == {*POLICIES, ALWAYS}
    chart = rendered(offline_helm, *ARGUMENTS)
    bindings = [each["spec"] for key, each in chart.items() if key[0] == "ValidatingAdmissionPolicyBinding"]
    assert {each["policyName"] for each in bindings} == {*POLICIES, ALWAYS}
    assert all(each["validationActions"] == ["Deny"] for each in bindings)


def test_audit_refuses_nothing(offline_helm: Helm) -> None:
    chart = rendered(offline_helm, *ARGUMENTS, "--set=teams.admission.policy=Audit")
    bindings = [each["spec"] for key, each in chart.items() if key[0] == "ValidatingAdmissionPolicyBinding"]
    assert all(each["validationActions"] == ["Warn", "Audit"] for each in bindings if each["policyName"] != ALWAYS)


def test_in_shadow_mode_nothing_is_filled_in_and_nothing_refused(offline_helm: Helm) -> None:
    """The webhook that fills pods in does not run, so missing fields are not violations."""
    shadow = (*ARGUMENTS, "--set=shadow=true")
    chart = rendered(offline_helm, *shadow)
    bindings = [each["spec"] for key, each in chart.items() if key[0] == "ValidatingAdmissionPolicyBinding"]
    assert {tuple(each["validationActions"]) for each in bindings} == {("Warn", "Audit")}
    assert names(offline_helm, "MutatingWebhookConfiguration", *shadow) == set()
    assert "muster-admission" not in names(offline_helm, "Deployment", *shadow)


def test_webhook_failure_blocks_no_user(offline_helm: Helm) -> None:
    chart = rendered(offline_helm, *ARGUMENTS)
    hooks = [
        hook
        for (kind, _, _), each in chart.items()
        if kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in each["webhooks"]
    ]
    assert len(hooks) == 2
    assert {hook["failurePolicy"] for hook in hooks} == {"Ignore"}


@pytest.mark.parametrize(
    "more", [(), ("--set=teams.admission.webhook.url=https://10.1.2.3:8444",), ("--set=pools.policy=Deny",)]
)
def test_a_real_api_server_takes_everything(world: World, offline_helm: Helm, more: tuple[str, ...]) -> None:
    objects = list(rendered(offline_helm, *ARGUMENTS, *more).values())
    body = {"apiVersion": "v1", "kind": "List", "items": objects}
    said = world.access.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(body)
    )
    assert said.count("(server dry run)") == len(objects)


def test_no_expression_has_a_type_that_cannot_be(world: World) -> None:
    """The API server checks expressions against the types that it knows, and says so in the status."""

    def checked() -> Json:
        found = world.api.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        said = {each["metadata"]["name"]: each.get("status", {}).get("typeChecking") for each in found}
        return said if None not in said.values() else {}

    warnings = eventually("each policy is checked", checked)
    assert {name: said for name, said in warnings.items() if said.get("expressionWarnings")} == {}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--set=teams.key=not/a/key", "at '/teams/key'"),
        ("--set=teams.admission.policy=Warn", "at '/teams/admission/policy': value must be one of"),
        ("--set=teams.admission.platformGroups={o'neil}", "at '/teams/admission/platformGroups/0'"),
        ("--set=teams.admission.webhook.url=http://x", "at '/teams/admission/webhook/url'"),
        ("--set=teams.admission.daemonSets={proxy}", "at '/teams/admission/daemonSets/0'"),
        ("--set=teams.admission.owner=me", "additional properties 'owner' not allowed"),
    ],
)
def test_a_bad_value_is_named(offline_helm: Helm, argument: str, message: str) -> None:
    done = offline_helm.run(
        "template", "muster", str(CHART), f"--namespace={SYSTEM}", "--kube-version=1.36.0", argument
    )
    assert done.returncode != 0
    assert message in done.stderr
