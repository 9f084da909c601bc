"""The objects of a canary, and the manifest that it copies."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime

import pytest
import yaml

from muster.doctor.pricing.canary import LABEL, canary_objects
from muster.doctor.pricing.manifest import Manifest, ManifestError, parse_manifest
from muster.doctor.pricing.sidecar import CONTAINER, with_sidecar
from tests.support.daemonpods import daemonset

EXPIRES = datetime(2030, 1, 1, tzinfo=UTC)


def manifest() -> Manifest:
    return parse_manifest(yaml.safe_dump(daemonset("telemetry", "image")), "default")


def test_canary_runs_only_on_its_nodes_and_the_quota_counts_only_its_pods() -> None:
    before = copy.deepcopy(manifest().daemonset)
    parsed = manifest()
    priority, quota, copied = canary_objects(parsed, "c1", ("node-1", "node-2"), EXPIRES)
    spec = copied["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [each["matchFields"][0]["values"] for each in terms] == [["node-1"], ["node-2"]]
    assert spec["priorityClassName"] == priority["metadata"]["name"] == "c1"
    assert priority["preemptionPolicy"] == "Never"
    assert quota["spec"]["hard"] == {"pods": "2"}
    assert quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == ["c1"]
    assert copied["spec"]["selector"]["matchLabels"] == {LABEL: "c1"}
    assert copied["spec"]["template"]["metadata"]["labels"] == {"app": "telemetry", LABEL: "c1"}
    assert spec["serviceAccountName"] == "telemetry"
    assert parsed.daemonset == before, "the user's manifest is not changed"


def test_affinity_of_the_daemonset_is_kept_beside_the_names_of_the_nodes() -> None:
    own = daemonset("telemetry", "image")
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}], "matchFields": [field]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    own["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required, "podAffinity": {"a": 1}}
    parsed = parse_manifest(json.dumps(own), "default")
    affinity = canary_objects(parsed, "c1", ("n1",), EXPIRES)[2]["spec"]["template"]["spec"]["affinity"]
    (found,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert found["matchExpressions"] == term["matchExpressions"]
    assert found["matchFields"] == [field, {"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    assert affinity["podAffinity"] == {"a": 1}


def test_system_priority_of_the_daemonset_is_replaced() -> None:
    own = daemonset("telemetry", "image")
    own["spec"]["template"]["spec"] |= {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}
    spec = canary_objects(parse_manifest(json.dumps(own), ""), "c1", ("n1",), EXPIRES)[2]["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "c1"
    assert "priority" not in spec


def test_recorder_replaces_the_api_server_for_every_container_and_keeps_what_they_had() -> None:
    own = daemonset("telemetry", "image")
    spec = own["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "KUBERNETES_SERVICE_HOST", "value": "x"}]
    spec["containers"].append({"name": "second", "image": "other"})
    spec["initContainers"] = [{"name": "first", "image": "init"}]
    found = with_sidecar(parse_manifest(json.dumps(own), ""), "muster:1").daemonset["spec"]["template"]["spec"]
    assert [each["name"] for each in found["initContainers"]] == [CONTAINER, "first"]
    for container in found["containers"]:
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"
        assert len(variables) == len(container["env"])
    assert found["containers"][0]["env"][0] == {"name": "A", "value": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("just text", "not an object"),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: p}", "holds 0 DaemonSets"),
        (yaml.safe_dump_all([daemonset("a", "i"), daemonset("b", "i")]), "holds 2 DaemonSets"),
        ("kind: DaemonSet\napiVersion: apps/v1\nmetadata: {}\n", "no name"),
        ("kind: DaemonSet\napiVersion: apps/v1\nmetadata: {name: a}\nspec: {}\n", "no spec.template"),
        ("kind: DaemonSet\napiVersion: apps/v1\n", "without metadata"),
        ("kind: List\nitems: [5]\n", "without metadata"),
    ],
)
def test_manifest_that_cannot_be_priced_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_manifest(text, "default")


def test_manifest_with_its_account_and_a_list_is_read() -> None:
    account = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "telemetry"}}
    own = daemonset("telemetry", "image")
    del own["metadata"]["namespace"]
    found = parse_manifest(json.dumps({"kind": "List", "apiVersion": "v1", "items": [account, own]}), "here")
    assert (found.namespace, found.account) == ("here", "here/telemetry")
    assert [each["kind"] for each in found.others] == ["ServiceAccount"]
