"""Facts that collectors take from answers of the API server."""

from __future__ import annotations

import pytest

from muster.api.finding import Severity
from muster.api.reader import list_right
from muster.doctor.costs.collect import RequestUsage
from muster.doctor.costs.owners import Caller
from muster.doctor.costs.shape import Shape
from muster.doctor.costs.tally import Observed, Usage
from muster.doctor.parts.dns import Dns, stale_s
from muster.doctor.parts.extensions import Aggregated, Conversion, Extensions, aggregated_of, converted_groups
from muster.doctor.parts.readiness import Readiness, failed_checks
from muster.doctor.parts.requests import Use, parse_requests
from muster.doctor.parts.watchers import EndpointsUse, accounts_that_watch
from muster.doctor.parts.workloads import DaemonSet, DaemonSets
from muster.doctor.servers import addresses_of
from tests.unit.doctor.conftest import Found

HEAD = (
    "PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime, InitialSeats, "
    "FinalSeats, AdditionalLatency, StartTime, UserName, Verb, APIPath, Namespace, Name, APIVersion, Resource, "
    "SubResource"
)


def row(user: str, path: str = "/api/v1/pods", seats: str = "3", version: str = "v1") -> str:
    return f"low, accounts, 3, -1, x, 2026, {seats}, 0, 0s, 2026, {user}, list, {path}, , , {version}, pods, "


def test_dump_of_requests_is_read_by_the_titles_of_its_columns() -> None:
    text = "\n".join([HEAD, row("a"), row("b", version="apps/v1", seats="0"), ""])
    assert list(parse_requests(text)) == [
        (Use("a", "list", "", "pods", "", "accounts", "low"), 3),
        (Use("b", "list", "apps", "pods", "", "accounts", "low"), 1),
    ]


def test_dump_leaves_out_broken_rows_and_itself() -> None:
    own = row("me", "/debug/api_priority_and_fairness/dump_requests")
    assert list(parse_requests("\n".join([HEAD, row("with, comma"), own, "rubbish"]))) == []
    assert list(parse_requests("<html>")) == []
    assert list(parse_requests("")) == []


@pytest.mark.parametrize(
    ("corefile", "seconds"),
    [
        (".:53 {\n  cache 30\n}", 0),
        (".:53 {\n  cache {\n    serve_stale\n  }\n}", 3600),
        (".:53 {\n  cache 30 {\n    success 9984\n    serve_stale 20m\n  }\n}", 1200),
        (".:53 {\n  cache 30 cluster.local {\n    serve_stale 1h30m immediate\n  }\n}", 5400),
        (".:53 {\n  forward . 10.0.0.1\n}", 0),
        ("", 0),
    ],
)
def test_time_of_stale_answers_is_read_from_the_corefile(corefile: str, seconds: float) -> None:
    assert stale_s(corefile) == seconds


def test_dns_on_the_control_plane_alone_and_stale_is_reported(find: Found) -> None:
    dns = Dns(("cp-0",), frozenset({"cp-0", "cp-1"}), 1200)
    assert [each.id for each in find(parts=[dns])] == ["dns-on-control-plane", "dns-single", "dns-hides-outage"]
    assert find(parts=[Dns(("cp-0", "node-1"), frozenset({"cp-0"}))]) == []
    assert find(parts=[Dns(("cp-0",), frozenset({"cp-0"}))], nodes=1) == []


def test_failed_checks_are_named(find: Found) -> None:
    text = "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n[-]poststarthook/a failed: not finished\n"
    assert failed_checks(text) == ("etcd", "poststarthook/a")
    (found,) = find(parts=[Readiness({"https://api": ("etcd",), "https://other": ()})])
    assert (found.id, found.who[0].name) == ("not-ready", "etcd")


def api_service(name: str, managed: str = "", service: bool = False, available: str = "True") -> dict[str, object]:
    version, _, group = name.partition(".")
    labels = {"kube-aggregator.kubernetes.io/automanaged": managed} if managed else None
    spec = {"group": group, "version": version} | (
        {"service": {"namespace": "monitoring", "name": "metrics"}} if service else {}
    )
    conditions = [{"type": "Available", "status": available, "reason": "MissingEndpoints"}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": conditions}}


def test_only_custom_resources_with_several_versions_are_converted() -> None:
    services = [
        api_service("v1.example.com", "true"),
        api_service("v1beta1.example.com", "true"),
        api_service("v1.single.example.com", "true"),
        api_service("v1.autoscaling", "onstart"),
        api_service("v2.autoscaling", "onstart"),
        api_service("v1beta1.metrics.k8s.io", service=True),
        api_service("v1.metrics.k8s.io", service=True),
    ]
    assert converted_groups(services) == [("example.com", "v1")]


def test_unavailable_api_and_conversion_without_backend_are_errors(find: Found) -> None:
    services = [
        api_service("v1beta1.metrics.k8s.io", service=True, available="False"),
        api_service("v1.apps", "onstart"),
    ]
    aggregated = tuple(aggregated_of(services))
    assert aggregated == (Aggregated("v1beta1.metrics.k8s.io", "monitoring/metrics", False, "MissingEndpoints"),)
    conversions = (Conversion("things.example.com", "a/down"), Conversion("others.example.com", "a/up"))
    extensions = Extensions(aggregated, conversions, {"a/down": 0, "a/up": 1})
    found = find(parts=[extensions])
    assert [(each.id, each.severity) for each in found] == [
        ("api-unavailable", Severity.ERROR),
        ("conversion-down", Severity.ERROR),
    ]


@pytest.mark.parametrize(
    ("succeeded", "seconds", "id_"), [("false", 0.1, "conversion-failing"), ("true", 3, "conversion-slow")]
)
def test_conversions_in_the_window_are_judged(find: Found, succeeded: str, seconds: float, id_: str) -> None:
    name = "apiserver_crd_conversion_webhook_duration_seconds"
    labels = f'crd_name="things.example.com",from_version="v1",to_version="v2",succeeded="{succeeded}"'
    before, after = (f"{name}_count{{{labels}}} {n}\n{name}_sum{{{labels}}} {n * seconds}\n" for n in (0, 4))
    assert [each.id for each in find((before, after))] == [id_]


def watches(count: int, resource: str = "endpoints", scope: str = "cluster") -> str:
    return f'apiserver_longrunning_requests{{verb="WATCH",group="",resource="{resource}",scope="{scope}"}} {count}\n'


def test_watchers_of_endpoints_are_named_by_their_daemonset(find: Found) -> None:
    use = EndpointsUse(frozenset({"net/proxy", "net/other"}), 23_000, 100, 30_000)
    daemonsets = DaemonSets((DaemonSet("net/proxy", "net/proxy", 100), DaemonSet("net/slices", "net/slices", 100)))
    (found,) = find((watches(101), watches(101)), parts=[use, daemonsets])
    assert (found.id, found.severity) == ("endpoints-watched", Severity.ERROR)
    assert [(who.kind, who.name) for who in found.who] == [("DaemonSet", "net/proxy")]
    cost, better = found.costs
    assert cost.today == 23_000 * 101
    assert cost.planned == pytest.approx(230_000 * 1010)  # ten times the addresses, and the watchers
    assert better.planned < cost.planned / 5


def test_endpoints_object_has_at_most_1000_addresses(find: Found) -> None:
    use = EndpointsUse(frozenset(), 230_000, 1000, 30_000)
    (found,) = find((watches(500), watches(500)), parts=[use], nodes=500, planned=5000)
    assert found.costs[0].planned == pytest.approx(230_000 * 5000)


def test_own_watches_of_kubernetes_are_not_reported(find: Found) -> None:
    assert find((watches(3), watches(3))) == []
    assert find((watches(3), watches(3)), (watches(3), watches(3))) == []
    assert find((watches(500, "endpointslices"), watches(500, "endpointslices"))) == []
    assert find((watches(500, scope="resource"), watches(500, scope="resource"))) == []


def test_accounts_are_found_through_roles_and_bindings() -> None:
    def role(name: str, resource: str, verb: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": [verb]}]}

    roles = [
        role("watcher", "endpoints", "watch"),
        role("everything", "*", "*"),
        role("reader", "endpoints", "get"),
        role("slices", "endpointslices", "watch"),
        role("system:controller:endpoint-controller", "endpoints", "watch"),
        role("system:node-proxier", "endpoints", "watch"),
        {"metadata": {"name": "empty"}},
    ]

    def binding(name: str) -> dict[str, object]:
        subjects = [{"kind": "ServiceAccount", "namespace": "net", "name": name}, {"kind": "User", "name": "ann"}]
        return {"roleRef": {"name": name}, "subjects": subjects}

    names = [
        "watcher",
        "everything",
        "reader",
        "slices",
        "system:node-proxier",
        "system:controller:endpoint-controller",
    ]
    assert set(accounts_that_watch(roles, map(binding, names))) == {"net/watcher", "net/everything"}


def test_addresses_of_api_servers_come_from_ready_endpoints() -> None:
    ready = {"addresses": ["10.0.0.2"], "conditions": {"ready": True}}
    unready = {"addresses": ["10.0.0.3"], "conditions": {"ready": False}}
    ports = [{"name": "https", "port": 6443}]
    slices = [
        {"ports": ports, "endpoints": [ready, unready]},
        {"ports": ports, "endpoints": [{"addresses": ["fd00::1"]}]},
        {"endpoints": None},
    ]
    assert addresses_of(slices) == ["https://10.0.0.2:6443", "https://[fd00::1]:6443"]


def test_right_of_a_list_is_named() -> None:
    assert list_right("/api/v1/nodes") == "list nodes"
    assert list_right("/apis/apps/v1/daemonsets") == "list daemonsets.apps"
    assert list_right("/api/v1/namespaces/kube-system/pods") == "list pods in namespace kube-system"
    with pytest.raises(ValueError, match="not the path of a collection"):
        list_right("/metrics")


def test_log_of_requests_names_who_watches_endpoints(find: Found) -> None:
    caller = Caller("DaemonSet", "net", "real", "net/real")
    shape = Shape("watch", "endpoints", "all")
    usage = Usage(caller, shape, 100, 100, 100, 0, 0.0, 1.0, 100.0, 0.0, 0)
    own = usage._replace(caller=Caller("User", "", "system:kube-controller-manager", system=True))
    logs = RequestUsage(Observed((own, usage), 60.0, {}, {}, 0, 0), 200, 0, "audit.log")
    use = EndpointsUse(frozenset({"net/proxy"}), 23_000, 100, 30_000)
    daemonsets = DaemonSets((DaemonSet("net/proxy", "net/proxy", 100),))
    found = find((watches(101), watches(101)), parts=[logs, use, daemonsets])
    (endpoints,) = [each for each in found if each.id == "endpoints-watched"]
    assert [(who.kind, who.name, who.share) for who in endpoints.who] == [("DaemonSet", "net/real", 1.0)]
