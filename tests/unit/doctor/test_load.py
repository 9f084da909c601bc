"""Rejections, errors, latency, lists, Events, Leases and memory, from small pages of metrics."""

from __future__ import annotations

import pytest

from muster.api.finding import Growth, Scale, Severity
from muster.doctor.parts.hosts import Hosts
from muster.doctor.parts.requests import Sampled, Use
from muster.doctor.parts.workloads import DaemonSet, DaemonSets
from muster.doctor.parts.writers import EventSource, EventWriters
from tests.unit.doctor.conftest import Found

ACCOUNT = "system:serviceaccount:monitoring:exporter"
DAEMONSETS = DaemonSets((DaemonSet("monitoring/exporter", "monitoring/exporter", 100),))


def sampled(*uses: tuple[str, str, str, str, float]) -> Sampled:
    return Sampled(
        {Use(user, verb, "", resource, "", flow, "workload-low"): seats for user, verb, resource, flow, seats in uses},
        10,
    )


def requests(count: int, code: int = 200, verb: str = "GET", resource: str = "pods", subresource: str = "") -> str:
    labels = f'verb="{verb}",group="",resource="{resource}",subresource="{subresource}",code="{code}"'
    return f"apiserver_request_total{{{labels}}} {count}\n"


def rejections(count: int, dispatched: int) -> str:
    labels = 'flow_schema="service-accounts",priority_level="workload-low"'
    return (
        f'apiserver_flowcontrol_rejected_requests_total{{{labels},reason="queue-full"}} {count}\n'
        f"apiserver_flowcontrol_dispatched_requests_total{{{labels}}} {dispatched}\n"
    )


def test_rejected_flow_is_named_with_its_busiest_client(find: Found) -> None:
    busy = sampled(
        (ACCOUNT, "list", "pods", "service-accounts", 9.0),
        ("system:serviceaccount:a:b", "get", "pods", "service-accounts", 1.0),
        ("admin", "list", "pods", "exempt", 50.0),
    )
    (found,) = find((rejections(10, 100), rejections(40, 370)), parts=[busy, DAEMONSETS])
    assert (found.id, found.severity) == ("requests-rejected", Severity.ERROR)
    assert [(who.kind, who.name, who.share) for who in found.who] == [
        ("DaemonSet", "monitoring/exporter", 0.9),
        ("ServiceAccount", "a/b", 0.1),
        ("FlowSchema", "service-accounts", None),
    ]
    assert [measure.value for measure in found.evidence] == [3.0, 10.0]
    assert found.costs[0].growth is Growth.PER_NODE


def test_rejections_before_the_window_are_not_reported(find: Found) -> None:
    assert find((rejections(40, 100), rejections(40, 370))) == []


def test_older_server_reports_rejections_by_code(find: Found) -> None:
    (found,) = find((requests(0, 429), requests(50, 429)))
    assert (found.id, found.evidence[0].value) == ("requests-rejected", 5.0)


def test_forbidden_eviction_is_not_a_rejection(find: Found) -> None:
    assert (
        find((requests(0, 429, "POST", subresource="eviction"), requests(50, 429, "POST", subresource="eviction")))
        == []
    )


@pytest.mark.parametrize(("failed", "ids"), [(100, ["server-errors"]), (5, []), (60, [])])
def test_errors_are_reported_above_a_share_and_a_number(find: Found, failed: int, ids: list[str]) -> None:
    before = requests(0) + requests(0, 500)
    assert [each.id for each in find((before, requests(9000) + requests(failed, 500)))] == ids


def latency(name: str, slow: int, verb: str = "GET", subresource: str = "", bound: float = 1.0) -> str:
    labels = f'verb="{verb}",group="",resource="pods",scope="resource",subresource="{subresource}"'
    return (
        f'{name}_bucket{{{labels},le="{bound}"}} 100\n{name}_bucket{{{labels},le="60"}} {100 + slow}\n'
        f'{name}_bucket{{{labels},le="+Inf"}} {100 + slow}\n{name}_count{{{labels}}} {100 + slow}\n'
        f"{name}_sum{{{labels}}} 1\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        "apiserver_request_sli_duration_seconds",
        "apiserver_request_slo_duration_seconds",
        "apiserver_request_duration_seconds",
    ],
)
def test_slow_requests_are_found_with_the_metric_of_any_version(find: Found, name: str) -> None:
    (found,) = find(("", latency(name, 40)))
    assert found.id == "slow-requests"
    assert found.evidence[0].value == 40
    assert found.evidence[0].source == name


@pytest.mark.parametrize(
    ("slow", "verb", "subresource", "bound"),
    [(19, "GET", "", 1.0), (40, "WATCH", "", 1.0), (40, "GET", "log", 1.0), (40, "CONNECT", "exec", 1.0)],
)
def test_few_or_long_running_requests_are_not_slow(
    find: Found, slow: int, verb: str, subresource: str, bound: float
) -> None:
    name = "apiserver_request_sli_duration_seconds"
    assert find(("", latency(name, slow, verb, subresource, bound))) == []


def test_list_may_take_30_s(find: Found) -> None:
    name = "apiserver_request_sli_duration_seconds"
    slow = latency(name, 40, "LIST", bound=30.0)
    assert [each.id for each in find(("", slow))] == ["slow-requests"]
    assert find(("", slow.replace('le="60"', 'le="30"').replace('le="30.0"', 'le="10"'))) == []


def lists(count: int, size: float, scope: str = "cluster", resource: str = "pods") -> str:
    labels = f'verb="LIST",group="",resource="{resource}",scope="{scope}"'
    return f"apiserver_response_sizes_count{{{labels}}} {count}\napiserver_response_sizes_sum{{{labels}}} {size}\n"


MIB = 2**20


def test_lists_of_a_daemonset_grow_with_the_square_of_the_nodes(find: Found) -> None:
    busy = sampled((ACCOUNT, "list", "pods", "service-accounts", 1.0), ("admin", "get", "pods", "exempt", 9.0))
    (found,) = find((lists(0, 0), lists(100, 10 * MIB)), parts=[busy, DAEMONSETS])
    assert (found.id, found.severity) == ("lists-unlimited", Severity.WARNING)
    assert [(who.kind, who.name) for who in found.who] == [("DaemonSet", "monitoring/exporter")]
    assert (found.costs[0].today, found.costs[0].planned) == (MIB, 100 * MIB)
    assert found.costs[0].growth is Growth.PER_NODE_SQUARED


def test_lists_without_a_sampled_client_say_how_to_find_it(find: Found) -> None:
    (found,) = find((lists(0, 0), lists(100, 200 * MIB)))
    assert (found.severity, found.who) == (Severity.ERROR, ())
    assert "audit log" in found.fix.summary


@pytest.mark.parametrize(
    ("count", "size", "scope", "resource"),
    [
        (4, 4000 * MIB, "cluster", "pods"),
        (100, 0.5 * MIB, "cluster", "pods"),
        (100, 400 * MIB, "namespace", "pods"),
        (100, 50 * MIB, "cluster", "configmaps"),
    ],
    ids=["rare", "small", "namespace", "does not grow"],
)
def test_cheap_lists_are_not_reported(find: Found, count: int, size: float, scope: str, resource: str) -> None:
    assert find((lists(0, 0, scope, resource), lists(count, size, scope, resource))) == []


def test_flood_of_events_is_named_by_component_and_account(find: Found) -> None:
    writers = EventWriters({EventSource("agent", "a"): 90, EventSource("other", "b"): 10}, 5.0, 1000.0)
    busy = sampled((ACCOUNT, "create", "events", "service-accounts", 1.0))
    pages = (requests(0, 201, "POST", "events"), requests(1000, 201, "POST", "events"))
    (found,) = find(pages, parts=[writers, busy])
    assert found.id == "events-flood"
    assert [(who.kind, who.name) for who in found.who] == [
        ("ServiceAccount", "monitoring/exporter"),
        ("EventSource", "agent in namespace a"),
    ]
    assert found.costs[1].today == 100 * 3600 * 1000


def etcd_writes(count: int) -> str:
    return f'etcd_requests_total{{operation="create",group="",resource="events"}} {count}\n'


def test_flood_of_events_is_not_a_reason_for_another_etcd(find: Found) -> None:
    before, after = (requests(count, 201, "POST", "events") + etcd_writes(count) for count in (0, 1000))
    assert [each.id for each in find((before, after))] == ["events-flood"]
    assert [each.id for each in find((before, after), nodes=5000)] == ["etcd-events-share"]


def test_events_of_a_large_cluster_are_usual(find: Found) -> None:
    pages = (requests(0, 201, "POST", "events"), requests(1000, 201, "POST", "events"))
    assert find(pages, nodes=5000, planned=7500) == []


@pytest.mark.parametrize(
    ("verb", "resource", "ids"), [("PUT", "leases", ["leases-busy"]), ("POST", "events", ["events-flood"])]
)
def test_writes_of_nodes_are_not_judged_if_the_number_of_nodes_is_unknown(
    find: Found, verb: str, resource: str, ids: list[str]
) -> None:
    pages = (requests(0, 200, verb, resource), requests(1000, 200, verb, resource))
    assert [each.id for each in find(pages, nodes=0)] == ids
    assert find(pages, nodes=0, known=False) == []


def test_costs_are_not_scaled_from_an_unknown_number_of_nodes() -> None:
    assert Scale(0, 7500).at_plan(2.0, Growth.PER_NODE) == 15_000.0
    assert Scale(0, 7500, known=False).at_plan(2.0, Growth.PER_NODE_SQUARED) == 2.0


@pytest.mark.parametrize(("writes", "nodes", "ids"), [(1000, 5000, []), (1000, 100, ["leases-busy"]), (300, 100, [])])
def test_leases_beyond_heartbeats_are_reported(find: Found, writes: int, nodes: int, ids: list[str]) -> None:
    labels = 'verb="PUT",group="coordination.k8s.io",resource="leases",code="200"'
    before, after = (f"apiserver_request_total{{{labels}}} {count}\n" for count in (0, writes))
    assert [each.id for each in find((before, after), nodes=nodes)] == ids


@pytest.mark.parametrize(
    ("resident", "nodes", "severity"),
    [
        (2**30, 100, Severity.WARNING),
        (7 * 2**30, 100, Severity.ERROR),
        (400 * MIB, 100, None),
        (2**30, 5, None),
    ],
    ids=["at the plan", "now", "small", "too few nodes to say"],
)
def test_memory_is_compared_with_the_machine(
    find: Found, resident: float, nodes: int, severity: Severity | None
) -> None:
    page = f"process_resident_memory_bytes {resident}\n"
    found = find((page, page), nodes=nodes, parts=[Hosts("cp-0", 8.0 * 2**30)])
    assert [each.severity for each in found] == ([severity] if severity else [])


def seats(used: int, rejected: int = 0) -> str:
    level = 'priority_level="workload-low"'
    return (
        f'apiserver_flowcontrol_current_executing_seats{{flow_schema="a",{level}}} {used}\n'
        f"apiserver_flowcontrol_current_limit_seats{{{level}}} 100\n"
        f'apiserver_flowcontrol_rejected_requests_total{{flow_schema="a",{level}}} {rejected}\n'
    )


def test_full_level_is_reported_if_it_was_full_both_times(find: Found) -> None:
    assert [each.id for each in find((seats(95), seats(99)))] == ["level-full"]
    assert find((seats(20), seats(99))) == []


def test_full_level_that_rejects_is_one_finding(find: Found) -> None:
    assert [each.id for each in find((seats(95), seats(99, 50)))] == ["requests-rejected"]


def test_large_objects_are_reported(find: Found) -> None:
    labels = 'group="example.com",resource="things"'
    counts, sizes = "apiserver_resource_objects", "apiserver_resource_size_estimate_bytes"
    large, small, failed = (
        f"{counts}{{{labels}}} 20\n{sizes}{{{labels}}} {size}\n" for size in (20 * 100_000, 20 * 1000, -1)
    )
    (found,) = find((large, large), (small, small))
    assert (found.id, found.who[0].name) == ("objects-large", "things.example.com")
    assert find((small, small)) == []
    assert find((failed, failed)) == []


def test_server_without_any_metric_has_no_finding(find: Found) -> None:
    assert find(("", "")) == []
    assert find() == []
