"""The rules about cluster DNS, and findings of nodes grouped for the whole cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from muster.api.finding import Severity
from muster.api.node_health import NodeHealth, NodeHealthStatus, ObservedFinding
from muster.kube.objects.meta import ObjectMeta
from muster.network.checks.cluster.collect import clients_of, deployment_of, responses_of
from muster.network.checks.cluster.evidence import Clients, DnsEvidence, Responses, Server
from muster.network.checks.cluster.examine import examine_dns, examine_nodes, in_order, sights_of, sights_of_page
from muster.network.checks.cluster.ndots import external_hosts
from muster.network.checks.cluster.placement import servers_needed
from muster.network.checks.cluster.spreading import HOSTNAME, spread_patch
from muster.network.checks.page import ChecksPage, SeenProblem

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"k8s-app": "kube-dns"}


def dns(*places: tuple[str, str, str], nodes: int = 10, planned: int = 0, **fields: Any) -> DnsEvidence:
    """Servers at (node, rack, zone)."""
    servers = tuple(Server(f"coredns-{number}", *place) for number, place in enumerate(places))
    return DnsEvidence(servers=servers, labels=LABELS, nodes=nodes, planned_nodes=planned, **fields)


def ids(evidence: DnsEvidence) -> list[str]:
    return [finding.id for finding in examine_dns(evidence)]


SPREAD = (("n1", "r1", "z1"), ("n2", "r2", "z2"))


def test_servers_on_different_nodes_and_racks_are_fine() -> None:
    assert ids(dns(*SPREAD, other_rack=True, other_zone=True)) == []


def test_all_servers_on_one_node_kubernetes_57683() -> None:
    (finding,) = examine_dns(dns(("n1", "r1", "z1"), ("n1", "r1", "z1"), other_rack=True))
    assert (finding.id, finding.severity) == ("dns-one-node", Severity.ERROR)
    assert "node n1" in finding.title
    (command,) = finding.fix.commands
    assert command.startswith("kubectl patch deployment coredns -n kube-system --type=strategic -p '{")
    patch = json.loads(command.split("-p ", 1)[1].strip("'"))
    assert patch["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]


@pytest.mark.parametrize("nodes", [0, 1])
def test_cluster_of_one_node_cannot_spread(nodes: int) -> None:
    assert ids(dns(("n1", "", ""), ("n1", "", ""), nodes=nodes)) == []


@pytest.mark.parametrize(
    ("other_rack", "other_zone", "expected"),
    [(True, True, ["dns-one-rack"]), (False, True, ["dns-one-zone"]), (False, False, [])],
)
def test_all_servers_in_one_rack_or_zone(other_rack: bool, other_zone: bool, expected: list[str]) -> None:
    places = (("n1", "r1", "z1"), ("n2", "r1", "z1"))
    assert ids(dns(*places, other_rack=other_rack, other_zone=other_zone)) == expected


def test_nodes_without_labels_say_nothing_about_racks() -> None:
    assert ids(dns(("n1", "", ""), ("n2", "", ""), other_rack=True, other_zone=True)) == []
    assert ids(dns(("n1", "r1", ""), ("n2", "", ""), other_rack=True)) == []


@pytest.mark.parametrize(
    ("nodes", "cached", "needed"),
    [(2, False, 2), (128, False, 2), (129, False, 3), (7500, False, 118), (7500, True, 30)],
)
def test_number_of_servers_that_nodes_need(nodes: int, cached: bool, needed: int) -> None:
    assert servers_needed(nodes, node_cache=cached) == needed


def test_too_few_servers_for_the_planned_nodes() -> None:
    assert ids(dns(*SPREAD, nodes=100)) == []
    (finding,) = examine_dns(dns(*SPREAD, nodes=100, planned=7500))
    assert (finding.id, finding.severity) == ("dns-too-few", Severity.WARNING)
    assert finding.fix.commands == ("kubectl scale deployment coredns -n kube-system --replicas=118",)
    assert ids(dns(*SPREAD, nodes=512, node_cache=True)) == []


def test_single_server_is_an_error() -> None:
    (finding,) = examine_dns(dns(("n1", "", ""), nodes=3))
    assert (finding.id, finding.severity) == ("dns-too-few", Severity.ERROR)
    assert "has 1 ready server;" in finding.title


def test_patch_requires_a_node_for_each_only_where_an_update_has_room() -> None:
    """With two pods on two nodes, the third pod of an update would stay pending."""
    roomy = spread_patch(LABELS, 2, 3, racks=True, zones=False)["spec"]["template"]["spec"]
    terms = roomy["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == [{"labelSelector": {"matchLabels": LABELS}, "topologyKey": HOSTNAME}]
    assert [each["topologyKey"] for each in roomy["topologySpreadConstraints"]] == ["muster.dev/rack"]
    assert {each["whenUnsatisfiable"] for each in roomy["topologySpreadConstraints"]} == {"ScheduleAnyway"}
    tight = spread_patch(LABELS, 2, 2, racks=False, zones=False)["spec"]["template"]["spec"]
    assert set(tight["affinity"]["podAntiAffinity"]) == {"preferredDuringSchedulingIgnoredDuringExecution"}
    assert "topologySpreadConstraints" not in tight


CLIENTS = Clients(sampled=10, default_ndots=8, external={"ml/train": 3})


def test_share_of_names_that_do_not_exist_shows_the_cost_of_ndots() -> None:
    answered = Responses(total=1000, absent=750, servers=2)
    (finding,) = examine_dns(dns(*SPREAD, clients=CLIENTS, responses=answered))
    assert finding.id == "dns-ndots"
    assert finding.evidence[0].value == 75.0
    assert [(who.name, who.share) for who in finding.who] == [("ml/train", 3 / 8)]
    for responses in (Responses(1000, 299, 2), Responses(999, 999, 2)):
        assert ids(dns(*SPREAD, clients=CLIENTS, responses=responses)) == []


def test_without_metrics_external_names_are_the_evidence() -> None:
    assert ids(dns(*SPREAD, clients=CLIENTS)) == ["dns-ndots"]
    assert ids(dns(*SPREAD, clients=Clients(10, 8))) == []
    assert ids(dns(*SPREAD, clients=Clients(10, 0), responses=Responses(1000, 900, 1))) == []


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("https://storage.googleapis.com/bucket", ["storage.googleapis.com"]),
        ("s3://user@Data.Example.com:9000/x", ["data.example.com"]),
        ("http://api.ml.svc.cluster.local http://db.ml.svc/", []),
        ("http://10.0.0.1:80/ http://localhost/ http://model-server/", []),
        ("https://a.b.c.d.e.example.com/", []),
        ("http://example.com./", []),
        ("--flag=https://huggingface.co", ["huggingface.co"]),
        ("just text, v1.2.3 and file.txt", []),
    ],
)
def test_external_hosts_of_urls(text: str, hosts: list[str]) -> None:
    """Names with five dots or more, and those that end with a dot, are not searched."""
    assert external_hosts(text) == hosts


def pod(namespace: str = "ml", name: str = "p", **spec: Any) -> dict[str, Any]:
    owner = {"kind": "ReplicaSet", "name": f"{name}-abc"}
    labels = {"pod-template-hash": "abc"}
    metadata = {"namespace": namespace, "name": f"{name}-abc-x", "ownerReferences": [owner], "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{"args": ["https://example.com"]}], **spec}}


def test_sample_of_pods_counts_those_that_search_all_domains() -> None:
    ndots = {"options": [{"name": "ndots", "value": "2"}]}
    pods = [
        pod(name="train"),
        pod(name="train"),
        pod(name="tuned", dnsConfig=ndots),
        pod(name="own", dnsPolicy="None"),
        pod(name="host", hostNetwork=True),
        pod(name="hostfirst", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
        pod("kube-system"),
        pod(name="inside", containers=[{"env": [{"name": "A", "value": "http://db.ml.svc"}, {"name": "B"}]}]),
    ]
    assert clients_of(pods) == Clients(5, 4, {"ml/train": 2, "ml/hostfirst": 1})


def test_deployment_of_a_pod_is_named_by_its_replica_set() -> None:
    assert deployment_of(pod(name="rke2-coredns")) == "rke2-coredns"
    assert (
        deployment_of({"metadata": {"name": "x", "ownerReferences": [{"kind": "DaemonSet", "name": "dns"}]}})
        == "coredns"
    )


def test_answers_are_read_from_coredns_metrics() -> None:
    page = (
        "# HELP coredns_dns_responses_total Counter of response status codes.\n"
        "# TYPE coredns_dns_responses_total counter\n"
        'coredns_dns_responses_total{plugin="",rcode="NOERROR",server="dns://:53",zone="."} 30\n'
        'coredns_dns_responses_total{plugin="",rcode="NXDOMAIN",server="dns://:53",zone="."} 70\n'
        "# TYPE coredns_dns_requests_total counter\n"
        'coredns_dns_requests_total{proto="udp"} 500\n'
    )
    assert responses_of(page) == (100, 70)
    with pytest.raises(ValueError, match="convert string to float"):
        responses_of("garbage {")


def health(node: str, *findings: ObservedFinding) -> NodeHealth:
    return NodeHealth(metadata=ObjectMeta(name=node), status=NodeHealthStatus(findings=findings))


def seen(check: str, code: str, age: timedelta = timedelta(0), count: int = 1, component: str = "") -> ObservedFinding:
    at = NOW - age
    return ObservedFinding(
        check=check, code=code, component=component, count=count, first_time=at, last_time=at, message=f"{count} times"
    )


def test_findings_of_nodes_are_grouped_with_their_fix() -> None:
    records = [
        health("n1", seen("neighbours", "overflow", count=2, component="IPv4"), seen("disk", "space")),
        health("n2", seen("neighbours", "overflow", count=9, component="IPv4"), seen("mtu", "bridge")),
        health("n3", seen("neighbours", "overflow", age=timedelta(hours=2)), seen("neighbours", "tomorrow")),
    ]
    findings = in_order(examine_nodes(sight for each in records for sight in sights_of(each, NOW)))
    assert [(each.id, [who.name for who in each.who]) for each in findings] == [
        ("neighbours-overflow", ["n2", "n1"]),
        ("mtu-bridge", ["n2"]),
    ]
    assert findings[0].title.endswith("Node n2 IPv4: 9 times.")
    assert [measure.value for measure in findings[0].evidence] == [2, 11]
    assert findings[0].fix.commands


def test_thousands_of_nodes_with_one_problem_are_one_finding() -> None:
    records = (health(f"n{number:04}", seen("conntrack", "near-limit")) for number in range(7500))
    (finding,) = examine_nodes(sight for each in records for sight in sights_of(each, NOW))
    assert finding.evidence[0].value == 7500
    assert len(finding.who) == 8


def test_report_for_scripts_keeps_its_names() -> None:
    (finding,) = examine_dns(dns(("n1", "", ""), ("n1", "", "")))
    data = msgspec.to_builtins(finding)
    assert {"id", "severity", "title", "who", "evidence", "fix"} <= set(data)


def test_mixes_that_network_agents_found_are_one_finding_with_the_fix() -> None:
    seen_mix = SeenProblem("firewall", "mix", "", "3 legacy rules and 5 of nftables")
    pages = [ChecksPage(f"n{number}", 1.0, (seen_mix, SeenProblem("tomorrow", "new", "", ""))) for number in range(3)]
    (finding,) = examine_nodes(sight for page in pages for sight in sights_of_page(page, NOW))
    assert (finding.id, [who.name for who in finding.who]) == ("firewall-mix", ["n0", "n1", "n2"])
    assert "iptables-legacy-save" in finding.fix.commands
