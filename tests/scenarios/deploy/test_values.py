"""Values about teams and the fleet: what is wrong is named before anything is installed; what the pages show works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenarios.deploy.conftest import CHART, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered

pytestmark = pytest.mark.slow

FLEET = Path(__file__).parents[3] / "docs" / "fleet.md"
BALLOONS = {"name": "a", "nodeSelector": {"a": "b"}, "replicas": 1, "resources": {"cpu": 1}}
SCALED = {"name": "a", "provider": "aws", "max": 1, "template": {"capacity": {"cpu": 8}}}


def fleet(part: str, config: dict[str, Any]) -> str:
    return f"--set-json=fleet.{part}={json.dumps({'enabled': True, 'config': config})}"


def teams(**values: Any) -> str:
    return f"--set-json=teams={json.dumps({'enabled': True, **values})}"


def admission(**values: Any) -> str:
    return teams(admission=values)


WRONG = {
    "words, lists and names": (
        [
            teams(
                key="Team/x",
                namespaceKey="a/b/c",
                admission={
                    "policy": "deny",
                    "platformGroups": [],
                    "owners": {"user": ["olga"]},
                    "schedulers": ["o'neil"],
                    "daemonSets": ["proxy"],
                    "exemptNamespaces": ["a/*"],
                },
            )
        ],
        [
            "at '/teams/key': 'Team/x' does not match",
            "at '/teams/namespaceKey'",
            "at '/teams/admission/policy': value must be one of 'Audit', 'Deny'",
            "at '/teams/admission/platformGroups': minItems: got 0, want 1",
            "at '/teams/admission/owners': additional properties 'user' not allowed",
            "at '/teams/admission/schedulers/0'",
            "at '/teams/admission/daemonSets/0'",
            "at '/teams/admission/exemptNamespaces/0'",
        ],
    ),
    "more of them": (
        [
            teams(enabled="yes", key="a_b/team", admission={"policy": "Disabled", "exemptions": []}),
            '--set-json=serviceAccount.annotations={"a":1}',
        ],
        [
            "at '/teams/enabled': got string, want boolean",
            "at '/teams/key'",
            "at '/teams/admission/policy'",
            "additional properties 'exemptions' not allowed",
            "at '/serviceAccount/annotations/a': got number, want string",
        ],
    ),
    "the scheduler": (
        ['--set-json=scheduler.config={"policy":"greedy","pools":{"a":{}},"order":"fare","backfillAskMax":1}'],
        [
            "at '/scheduler/config/policy': value must be one of",
            "at '/scheduler/config/pools/a': missing property 'policy'",
            "at '/scheduler/config/order'",
            "additional properties 'backfillAskMax' not allowed",
        ],
    ),
    "a key that CEL would end at": ([teams(key="it's")], ["at '/teams/key'"]),
    "a key that is too long": ([teams(key="k" * 64)], ["at '/teams/key'"]),
    "a webhook": (
        [admission(webhook={"url": "http://10.0.0.1", "port": 443, "replicas": 0, "failurePolicy": "Fail"})],
        [
            "at '/teams/admission/webhook/url'",
            "at '/teams/admission/webhook/port': minimum: got 443, want 1,024",
            "at '/teams/admission/webhook/replicas': minimum: got 0, want 1",
            "additional properties 'failurePolicy' not allowed",
        ],
    ),
    "a path in its address": (
        [admission(webhook={"url": "https://10.0.0.1/mutate"})],
        ["/teams/admission/webhook/url"],
    ),
    "one port for two": ([admission(webhook={"port": 9444})], ["webhook.port and .metricsPort are both 9444"]),
    "one port for two of the controller": (
        ["--set=metrics.port=8443"],
        ["service.port and metrics.port are both 8443"],
    ),
    "a key of Kubernetes": ([teams(key="node.kubernetes.io/team")], ["take another, such as muster.dev/team"]),
    "a key of Muster": ([teams(key="muster.dev/pool")], ["means something else to Muster: take another"]),
    "priorities above": (
        ["--set=fleet.balloons.priority=0"],
        ["at '/fleet/balloons/priority': maximum: got 0, want -1"],
    ),
    "quarantine without a way out": (
        ["--set=health.enabled=true,health.remediation.config.mode=act"],
        ["health.remediation.config.mode is act, and a node with GPUs leaves quarantine only through a test"],
    ),
    "required tests without preflight": (
        ["--set=health.enabled=true,health.preflight.required=true"],
        ["health.preflight.required needs health.preflight.enabled"],
    ),
    "tests without an image": (
        ["--set=health.enabled=true,health.preflight.enabled=true"],
        ["health.preflight.config.image is missing: name an image"],
    ),
    "tests without health": (
        ["--set=health.preflight.enabled=true,health.preflight.config.image=a"],
        ["health.preflight.enabled needs health.enabled"],
    ),
    "tests": (
        ['--set-json=health.preflight.config={"levels":{"boot":4},"atOnce":0,"retests":{"every":1},"backend":"amd"}'],
        [
            "at '/health/preflight/config/levels/boot'",
            "at '/health/preflight/config/atOnce': minimum: got 0, want 1",
            "additional properties 'every' not allowed",
            "at '/health/preflight/config/backend'",
        ],
    ),
    "priorities below": (["--set=fleet.balloons.priority=-11"], ["minimum: got -11, want -10"]),
    "pools and paces": (
        [
            fleet("balloons", {"pools": [{**BALLOONS, "name": "A", "replicas": -1, "resources": {}}], "pool": []}),
            fleet("joins", {"periodSeconds": 0, "startnodes": 1}),
            fleet("scaling", {"pools": [{**SCALED, "provider": "azure", "max": -1, "idleSeconds": 0, "template": {}}]}),
        ],
        [
            "at '/fleet/balloons/config': additional properties 'pool' not allowed",
            "at '/fleet/balloons/config/pools/0/name'",
            "at '/fleet/balloons/config/pools/0/replicas': minimum: got -1, want 0",
            "at '/fleet/balloons/config/pools/0/resources': minProperties: got 0, want 1",
            "at '/fleet/joins/config/periodSeconds': minimum: got 0, want 1",
            "at '/fleet/joins/config': additional properties 'startnodes' not allowed",
            "at '/fleet/scaling/config/pools/0/provider': value must be one of 'aws', 'external'",
            "at '/fleet/scaling/config/pools/0/max': minimum: got -1, want 0",
            "at '/fleet/scaling/config/pools/0/idleSeconds': exclusiveMinimum: got 0, want 0",
            "at '/fleet/scaling/config/pools/0/template': missing property 'capacity'",
        ],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_values_are_named(offline_helm: Helm, name: str) -> None:
    arguments, messages = WRONG[name]
    done = offline_helm.run("template", "muster", str(CHART), "--kube-version=1.36.0", *arguments)
    assert done.returncode != 0
    assert [each for each in messages if each not in done.stderr] == [], done.stderr


@pytest.mark.parametrize(
    "argument", ["--set=teams.key=openai.com/team", "--set=teams.key=team", "--set=teams.key=muster.dev/team-of-node"]
)
def test_a_key_of_ones_own_is_taken(offline_helm: Helm, argument: str) -> None:
    rendered(offline_helm, "--set=teams.enabled=true", argument)


def shown() -> dict[str, Any]:
    """The configurations on the page about the fleet, by part."""
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", FLEET.read_text(), re.DOTALL))
    found: dict[str, Any] = {}
    for block in blocks:
        if "fleet" in block:
            found |= {part: each["config"] for part, each in block["fleet"].items()}
        else:
            found["scaling"] = yaml.safe_load(block["data"]["scaling.yaml"])
    return found


@pytest.mark.parametrize("part", ["balloons", "joins", "scaling"])
def test_examples_of_the_page_are_rendered_unchanged(offline_helm: Helm, part: str) -> None:
    config = shown()[part]
    objects = rendered(offline_helm, fleet(part, config))
    data = objects["ConfigMap", SYSTEM, f"muster-{part}"]["data"]
    assert yaml.safe_load(data[f"{part}.yaml"]) == config


def test_large_numbers_stay_whole(offline_helm: Helm) -> None:
    """A number that is written as 1e+12 is not a quantity to Kubernetes."""
    pool = {**BALLOONS, "replicas": 2_000_000, "resources": {"memory": 1_099_511_627_776}}
    text = rendered(offline_helm, fleet("balloons", {"pools": [pool]}))["ConfigMap", SYSTEM, "muster-balloons"]
    assert yaml.safe_load(text["data"]["balloons.yaml"]) == {"pools": [pool]}


def test_the_webhook_gets_no_environment_of_the_controllers(offline_helm: Helm) -> None:
    """Keys of a cloud are for the controller, which scales."""
    environment = ("--set=extraEnv[0].name=AWS_SECRET_ACCESS_KEY,extraEnv[0].value=secret",)
    own = "--set=teams.admission.webhook.extraEnv[0].name=TZ,teams.admission.webhook.extraEnv[0].value=UTC"
    objects = rendered(offline_helm, "--set=teams.enabled=true", *environment, own)

    def names(deployment: str) -> set[str]:
        spec = objects["Deployment", SYSTEM, deployment]["spec"]["template"]["spec"]
        return {each["name"] for each in spec["containers"][0]["env"]}

    assert "AWS_SECRET_ACCESS_KEY" in names("muster-controller")
    assert names("muster-admission") == {"POD_IP", "MUSTER_SERVICE_ACCOUNT_DIR", "TZ"}
