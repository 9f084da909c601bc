"""Issue 11.6: an upgrade that keeps the values of an older chart works, and every text in the values has a schema.

`helm upgrade --reuse-values` renders the new chart with the values of the old one, so each value that was added since
is absent. A chart whose values.yaml lacks a value renders in the same way.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.chart import generate, rights
from muster.controlplane.programs import ControlPlane
from tests.scenarios.deploy.conftest import CHART, RELEASE, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Path_ = tuple[str, ...]
OLD_VALUES = Path(__file__).parent / "values-first-chart.yaml"
"""values.yaml of the first chart that was committed."""
KUBERNETES_SHAPED = {"affinity", "annotations", "nodeSelector", "podSecurityContext", "resources", "tolerations"}
"""A user removes such a default with KEY=null, so an absent one stays absent."""
EVERYTHING = {
    "data": {"cache": {"enabled": True}},
    "doctor": {"breakGlass": {"enabled": True}},
    "fleet": {part: {"enabled": True} for part in ("balloons", "joins", "scaling")},
    "health": {
        "enabled": True,
        "preflight": {"enabled": True, "config": {"image": "registry.example/gputest:1"}},
        "remediation": {"policy": {"version": 1, "revision": "ours"}},
    },
    "metrics": {"serviceMonitor": {"enabled": True}},
    "network": {
        "enabled": True,
        "config": {
            "pods": {"enabled": True},
            "traffic": {"enabled": True},
            "uplink": {"enabled": True, "budget": {"in": "1G", "out": "1G"}},
        },
    },
    "networkPolicy": {"enabled": True},
    "pools": {"policy": "Deny"},
    "readCache": {"enabled": True, "node": {"enabled": True}},
    "teams": {"enabled": True},
    "telemetry": {
        "guard": {
            "enabled": True,
            "config": {
                "upstream": {"url": "http://prometheus:9090", "tokenFile": "/etc/muster-guard-upstream/token"},
                "callers": {"cluster": {"callers": [{"name": "rules", "groups": ["rulers"]}]}},
            },
            "upstreamToken": {"enabled": True},
        },
    },
}
ASKED_FOR = {("health", "enabled"), ("health", "preflight", "config"), ("telemetry", "guard", "config")}
"""What the chart asks for where preflight or the guard is enabled."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def paths(values: dict[str, Any], at: Path_ = ()) -> Iterator[Path_]:
    """Every path, of blocks and of what is in them."""
    for key, value in values.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from paths(value, (*at, key))


def get(values: Any, path: Path_) -> Any:
    for key in path:
        values = values[key]
    return values


def within_text(path: Path_) -> bool:
    return any(".".join(path[:length]) in generate.TEXTS for length in range(1, len(path)))


def without(values: dict[str, Any], path: Path_) -> dict[str, Any]:
    out = copy.deepcopy(values)
    del get(out, path[:-1])[path[-1]]
    return out


def write_chart(folder: Path, source: Path, name: str, values: dict[str, Any]) -> None:
    """Write a chart with the files of `source`, which links share, and with other values of its own."""
    own = ("Chart.yaml", "values.yaml")
    shutil.copytree(source, folder, copy_function=os.link, ignore=shutil.ignore_patterns(*own))
    (folder / "Chart.yaml").write_text((source / "Chart.yaml").read_text().replace("name: muster", f"name: {name}"))
    (folder / "values.yaml").write_text(json.dumps(values))  # which is YAML too, and written 20 times as fast


def render_all(helm: Helm, folder: Path, variations: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Render one copy of the chart for each variation, in one run: {variation: {template: text}}.

    Without the CRDs and dashboards, Helm accepts many copies.
    """
    (folder / "charts").mkdir(parents=True)
    source = folder.with_name("source")
    shutil.copytree(CHART, source, ignore=shutil.ignore_patterns("crds", "dashboards"))
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: all\nversion: 1.0.0\n")
    names = {f"m{number}": variation for number, variation in enumerate(variations)}
    for name, variation in names.items():
        write_chart(folder / "charts" / name, source, name, variations[variation])
    text = helm.ok("template", RELEASE, str(folder), "--namespace", SYSTEM, "--kube-version=1.36.0")
    found: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(str))
    for part in re.split(r"^---\n# Source: all/charts/", text, flags=re.MULTILINE)[1:]:
        source, _, body = part.partition("\n")
        name, _, template = source.partition("/templates/")
        found[names[name]][template] += body.replace(f"/{name}:", "/muster:").rstrip() + "\n"
    return found


def test_pods_behind_a_service_serve_until_all_nodes_know_that_they_end(offline_helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(EVERYTHING))
    objects = rendered(offline_helm, f"--values={values}")
    selectors = [each["spec"]["selector"] for (kind, _, _), each in objects.items() if kind == "Service"]
    waits_s = {}
    for (kind, _, name), each in objects.items():
        template = each["spec"]["template"] if kind == "Deployment" else None
        if template is None or not any(each.items() <= template["metadata"]["labels"].items() for each in selectors):
            continue
        lifecycle = template["spec"]["containers"][0].get("lifecycle", {})
        waits_s[name] = lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0)
    # A standby of the controller answers 503, and callers try again.
    assert waits_s == {"muster-controller": 0, "muster-admission": 5, "muster-guard": 5, "muster-readcache": 5}


def test_each_value_may_be_absent_and_its_default_holds(offline_helm: Helm, tmp_path: Path) -> None:
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), EVERYTHING)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    everything = [path for path in sorted(paths(values)) if not within_text(path) and path not in ASKED_FOR]
    variations = {"": values, "defaults": defaults, "empty": {}}
    variations |= {".".join(path): without(values, path) for path in everything}
    found = render_all(offline_helm, tmp_path / "all", variations)
    assert len(found) == len(variations)
    bad = {
        name for name, texts in found.items() if any("<no value>" in each or "%!" in each for each in texts.values())
    }
    assert bad == set()

    def default(path: Path_) -> Any:
        try:
            return get(defaults, path)
        except KeyError:
            return None

    for path in everything:
        inside = set(path) & KUBERNETES_SHAPED
        holds_one = isinstance(get(values, path), dict) and any(
            set(each) & KUBERNETES_SHAPED for each in paths(get(values, path))
        )
        if get(values, path) == default(path) and not inside and not holds_one:
            assert found[".".join(path)] == found[""], path
    kinds = {name: sorted(texts) for name, texts in found.items()}
    assert kinds["empty"] == kinds["defaults"]


def test_every_text_has_a_generated_schema() -> None:
    assert generate.main(["--check"]) == 0
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    texts = {
        ".".join(path)
        for path in paths(values)
        if path[-1] in ("config", "policy") and isinstance(get(values, path), dict)
    }
    assert texts == set(generate.TEXTS)
    schema = json.loads((CHART / "values.schema.json").read_text())
    for text in texts:
        at = schema
        for key in text.split("."):
            at = at["properties"][key]
        assert at == {"$ref": f"#/definitions/generated:{text}"}

    def open_objects(schema: Any, at: str) -> Iterator[str]:
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("additionalProperties") is not False:
                yield at
            for key, each in schema.items():
                yield from open_objects(each, f"{at}/{key}")
        elif isinstance(schema, list):
            for each in schema:
                yield from open_objects(each, at)

    assert list(open_objects(schema["definitions"] | {"env": {}}, "")) == []


def test_the_listed_rights_are_those_that_helm_renders(offline_helm: Helm, tmp_path: Path) -> None:
    """The tables in docs/install.md come from the templates, which are read there without Helm."""
    assert rights.main(["--check"]) == 0
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(merged(EVERYTHING, {"fleet": {"balloons": {"priority": -5}}})))
    rendered = yaml.safe_load_all(offline_helm.template(f"--values={values}"))
    found = {
        right for each in rendered if each and each["kind"] in ("Role", "ClusterRole") for right in rights.of_role(each)
    }
    listed = {
        right._replace(namespace=SYSTEM if right.namespace == rights.OWN else right.namespace)
        for right in rights.rights()
    }
    assert listed == found
    assert {right.key for right in listed} == rights.REASONS.keys()


MISTAKES = {
    "health.remediation.config.mode=actt": "at '/health/remediation/config/mode': value must be one of 'act'",
    "health.remediation.config.moed=act": "at '/health/remediation/config': additional properties 'moed' not allowed",
    "health.remediation.config.quarantined.all=ten": "at '/health/remediation/config/quarantined/all'",
    "health.remediation.policy.rule=x": "at '/health/remediation/policy': additional properties 'rule' not allowed",
    "health.agent.config.checks.disc.enabled=false": "additional properties 'disc' not allowed",
    "health.agent.config.checks.disk.options.slowMS=5": "additional properties 'slowMS' not allowed",
    "health.agent.config.checks.gpu.options.expected=eight": "at '/health/agent/config/checks/gpu/options/expected'",
    "health.preflight.config.startSeconds=1": "at '/health/preflight/config/startSeconds': minimum: got 1, want 10",
    "fleet.joins.config.periodseconds=5": "additional properties 'periodseconds' not allowed",
}


def test_a_mistake_in_a_text_is_named_before_anything_is_installed(offline_helm: Helm) -> None:
    done = offline_helm.run(
        "template", RELEASE, str(CHART), "--kube-version=1.36.0", *(f"--set={each}" for each in MISTAKES)
    )
    assert done.returncode != 0
    assert [message for message in MISTAKES.values() if message not in done.stderr] == [], done.stderr


def test_a_field_that_the_programs_know_is_accepted(offline_helm: Helm) -> None:
    """`runtimeClass` was refused: the schema was written by hand and had not followed the code."""
    offline_helm.template("--set=health.preflight.config.runtimeClass=nvidia")
    offline_helm.template("--set=health.agent.config.checks.disk.options.slowMs=250")


def test_values_of_an_older_chart_are_upgraded_on_a_real_api_server(
    control_plane_binaries: Path, helm_program: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(CHART, old)
    (old / "values.yaml").write_text(OLD_VALUES.read_text())
    new = ("upgrade", RELEASE, str(CHART), f"--namespace={SYSTEM}")
    with ControlPlane(control_plane_binaries, controller_manager=False) as plane:
        helm = Helm(helm_program, tmp_path, plane.kubeconfig)

        def deployment() -> Any:
            arguments = ("get", "deployment", "muster-controller", f"--namespace={SYSTEM}", "--output=json")
            return json.loads(plane.access.kubectl(*arguments))["spec"]

        helm.ok("install", RELEASE, str(old), f"--namespace={SYSTEM}", "--create-namespace", "--set=replicas=3")
        for flag, more in (
            ("--reuse-values", ("--set=metrics.port=9500", "--set=health.enabled=true")),
            ("--reuse-values", ("--set=teams.enabled=true,fleet.joins.enabled=true",)),
            ("--reset-then-reuse-values", ("--set=pools.policy=Audit",)),
        ):
            helm.ok(*new, flag, *more)
            assert deployment()["replicas"] == 3, flag
            assert "--metrics-listen=$(POD_IP):9500" in deployment()["template"]["spec"]["containers"][0]["args"]
        names = plane.access.kubectl("get", "daemonsets,deployments,validatingadmissionpolicies", "-A", "-oname")
        assert {each.rpartition("/")[2] for each in names.split()} >= {
            "muster-agent",
            "muster-admission",
            "muster-pools-pods",
        }
