"""Who sends what, and what it costs at another size."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from muster.api.finding import Growth
from muster.doctor.costs.collect import RequestUsage, tally_files
from muster.doctor.costs.cost import Objects, Population, by_caller
from muster.doctor.costs.growth import fit
from muster.doctor.costs.owners import Owners, PodFacts, Workload
from muster.doctor.costs.rule import expensive
from muster.doctor.costs.tally import CALLERS_MAX, SHAPES_MAX, Tally
from muster.kube.objects.meta import OwnerReference
from muster.kube.requestlog import RequestLine
from tests.support.auditevents import event, informers, polling, text

TEN = Population(10, {"pods": Objects(120, 3000.0, 0.5), "nodes": Objects(10, 8000.0, 1.0)})


def pods_of(name: str, count: int, *, account: str = "", kind: str = "DaemonSet") -> list[PodFacts]:
    owner = OwnerReference("apps/v1", kind, name, f"uid-{name}", controller=True)
    return [
        PodFacts("monitoring", f"{name}-{number}", account or name, f"node-{number}", owner) for number in range(count)
    ]


def usage_of(tmp_path: Path, lines: Iterable[str], owners: Owners) -> RequestUsage:
    path = tmp_path / "audit.log"
    path.write_bytes(text(list(lines)))
    return tally_files([path], owners, frozenset(f"node-{number}" for number in range(10)))


def test_telemetry_of_december_2024_is_found_with_ten_nodes_and_a_harmless_daemonset_is_not(tmp_path: Path) -> None:
    owners = Owners([*pods_of("telemetry", 10), *pods_of("quiet", 10)])
    usage = usage_of(tmp_path, [*polling(10, 120, 5.0), *informers(10, 120)], owners)
    found = expensive(usage, TEN, planned=100)
    ((cost, reference),) = found
    assert cost.caller.words == "DaemonSet monitoring/telemetry"
    assert cost.growth is Growth.PER_NODE_SQUARED
    assert cost.today.objects == pytest.approx(10 * 120 / 5, rel=0.01)
    assert reference.planned.objects == pytest.approx(7500 * 120 * 750 / 5, rel=0.01)
    assert reference.planned.list_bytes == pytest.approx(7500 * 120 * 750 / 5 * 3000, rel=0.01)


def test_daemonset_that_gets_every_node_one_by_one_grows_per_node_squared(tmp_path: Path) -> None:
    lines = [
        event("get", "nodes", at + number / 20, name=f"node-{number}", pod=f"telemetry-{pod}", node=f"node-{pod}")
        for at in range(0, 60, 5)
        for pod in range(10)
        for number in range(10)
    ]
    usage = usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10)))
    ((cost, reference),) = expensive(usage, TEN, planned=100)
    assert cost.growth is Growth.PER_NODE_SQUARED
    assert cost.today.requests == pytest.approx(10 * 10 / 5, rel=0.1)
    assert reference.planned.requests == pytest.approx(7500 * 7500 / 5, rel=0.1)


def test_growth_during_a_roll_out_is_fitted_from_the_log_alone(tmp_path: Path) -> None:
    lines = polling(10, 600, 2.0, step_s=50.0)
    usage = usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10)))
    (samples,) = [each for caller, each in usage.observed.samples.items() if caller.kind == "DaemonSet"]
    fitted = fit(samples)
    assert fitted.growth is Growth.PER_NODE
    assert fitted.at(100) == pytest.approx(50, rel=0.15)


def test_requests_at_the_start_of_a_pod_are_not_taken_as_a_rate(tmp_path: Path) -> None:
    lines = [event("get", "configmaps", at / 10, name=f"c{at}", namespace="x", pod="telemetry-0") for at in range(5)]
    lines += [event("list", "pods", at, pod="telemetry-1", node="node-1") for at in range(0, 600, 10)]
    usage = usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10)))
    gets = next(each for each in usage.observed.usages if each.shape.verb == "get")
    lists = next(each for each in usage.observed.usages if each.shape.verb == "list")
    assert (gets.rate, gets.startup) == (0.0, 5.0)
    assert lists.rate == pytest.approx(0.1)


def test_six_pods_that_ran_one_after_the_other_do_not_count_as_six(tmp_path: Path) -> None:
    lines = [event("list", "pods", at, pod=f"web-{at // 100}", node=f"node-{at // 100}") for at in range(0, 600, 2)]
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-abc", uid="rs", controller=True)
    above = {"rs": OwnerReference(api_version="apps/v1", kind="Deployment", name="web", uid="d", controller=True)}
    pods = [PodFacts("monitoring", f"web-{each}", "telemetry", "node-1", owner) for each in range(6)]
    usage = usage_of(tmp_path, lines, Owners(pods, above))
    (found,) = usage.observed.usages
    assert found.caller.words == "Deployment monitoring/web"
    assert found.instances <= 2
    assert found.rate / found.instances == pytest.approx(0.5, rel=0.01)


def test_open_watches_are_counted_whether_their_end_is_in_the_log_or_not(tmp_path: Path) -> None:
    ended = informers(5, 100)
    still_open = [line for line in informers(10, 100, first=0.01) if "ResponseStarted" in line]
    other = event("get", "nodes", 100, name="n", user="admin")
    begun_before = [line for line in informers(1, 1000, first=-900) if "ResponseComplete" in line]
    for lines, watches in ((ended, 5), ([*still_open, other], 10), ([*begun_before, other], 1)):
        usage = usage_of(tmp_path, lines, Owners(pods_of("quiet", 10)))
        (found,) = [each for each in usage.observed.usages if each.shape.verb == "watch"]
        assert found.watches == pytest.approx(watches, rel=0.02)
        assert found.shape.selector == "node"


def test_account_that_two_daemonsets_share_is_split_by_pod_then_by_user_agent(tmp_path: Path) -> None:
    owners = Owners([*pods_of("a", 3, account="shared"), *pods_of("b", 3, account="shared")])
    user = "system:serviceaccount:monitoring:shared"
    lines = [
        event("list", "pods", 1, pod="a-0", agent="a/1", user=user),
        event("list", "pods", 2, agent="a/1", user=user),
        event("list", "pods", 3, pod="b-9", agent="b/1", user=user),
        event("list", "pods", 4, agent="b/1", user=user),
    ]
    usage = usage_of(tmp_path, lines, owners)
    assert {each.caller.words: each.calls for each in usage.observed.usages} == {
        "DaemonSet monitoring/a": 2,
        "ServiceAccount monitoring/shared": 2,
    }


def test_workload_names_the_owner_if_pods_could_not_be_read(tmp_path: Path) -> None:
    owners = Owners(workloads=[Workload("DaemonSet", "monitoring", "telemetry", "monitoring/telemetry")])
    usage = usage_of(tmp_path, polling(10, 60, 5.0), owners)
    assert {each.caller.words for each in usage.observed.usages} == {"DaemonSet monitoring/telemetry"}
    assert usage.observed.usages[0].nodes == 10


def test_pod_of_another_account_is_not_blamed() -> None:
    owners = Owners(pods_of("telemetry", 1))
    forged = RequestLine(time=1, user="system:serviceaccount:monitoring:other", pod="telemetry-0")
    assert owners.find(forged).caller.words == "ServiceAccount monitoring/other"


def test_legacy_token_is_found_by_the_address_of_the_pod() -> None:
    pod = pods_of("telemetry", 1)[0]._replace(address="10.1.2.3")
    other = pods_of("second", 1, account="telemetry")[0]
    line = RequestLine(time=1, user="system:serviceaccount:monitoring:telemetry", peer="10.1.2.3")
    assert Owners([pod, other]).find(line).caller.words == "DaemonSet monitoring/telemetry"


def test_kubelets_and_the_control_plane_are_named_and_never_found(tmp_path: Path) -> None:
    lines = []
    for at in range(60):
        lines += [event("list", "pods", at, user=f"system:node:node-{number}") for number in range(10)]
        lines.append(event("list", "pods", at, user="system:kube-scheduler"))
        lines.append(event("list", "pods", at, user="system:serviceaccount:kube-system:job-controller"))
    usage = usage_of(tmp_path, lines, Owners())
    assert usage.observed.kubelets == 10
    assert {each.caller.kind for each in usage.observed.usages} == {"Kubelet", "User", "ServiceAccount"}
    assert expensive(usage, TEN, planned=7500) == []


def test_list_without_limit_of_one_client_is_found_because_the_objects_grow(tmp_path: Path) -> None:
    owner = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="crawler", uid="uid", controller=True)
    owners = Owners([PodFacts("monitoring", "crawler-0", "telemetry", "node-1", owner)])
    lines = [event("list", "pods", at, pod="crawler-0") for at in range(100)]
    usage = usage_of(tmp_path, lines, owners)
    ((cost, _),) = expensive(usage, TEN, planned=7500)
    assert cost.caller.words == "StatefulSet monitoring/crawler"
    assert cost.growth is Growth.PER_NODE
    assert cost.lines[0].usage.shape.words == 'lists all pods, without limit, resourceVersion ""'


@pytest.mark.slow
def test_87669_and_128310_random_clients_and_requests_are_counted_in_bounded_memory() -> None:
    """The API server dropped the label `client` of its metrics because it had no bound; here it has one."""
    tally = Tally(Owners())
    rng = random.Random(7)
    for number in range(4 * CALLERS_MAX):
        tally.add(RequestLine(time=float(number), verb="get", resource="pods", user=f"u{rng.random()}"))
    for number in range(4 * SHAPES_MAX):
        tally.add(RequestLine(time=float(number), verb="get", resource=f"r{number}", user="one", name=f"{number}"))
    observed = tally.finish()
    assert len({usage.caller for usage in observed.usages}) <= CALLERS_MAX + 1
    assert len(observed.usages) <= CALLERS_MAX + SHAPES_MAX + 2
    assert sum(usage.calls for usage in observed.usages) == 4 * (CALLERS_MAX + SHAPES_MAX)
    assert observed.dropped > 0


def test_117777_watches_of_a_daemonset_are_projected(tmp_path: Path) -> None:
    """A watch takes 50 to 100 KiB of the API server's memory, and no limit exists for their number."""
    usage = usage_of(tmp_path, informers(10, 300), Owners(pods_of("quiet", 10)))
    (cost,) = by_caller(usage.observed.usages, TEN, TEN.at(7500), {})
    assert cost.today.watches == pytest.approx(10, rel=0.01)
    assert cost.planned.watches == pytest.approx(7500, rel=0.01)
    assert cost.planned.events == pytest.approx(0.5 * 750, rel=0.02)


def test_cilium_15153_watch_of_all_objects_on_every_node_grows_per_node_squared(tmp_path: Path) -> None:
    """cilium/cilium#15153: each node watched the endpoints of all nodes, which was 90,000 events/s at 1,000 nodes."""
    lines = [line.replace("fieldSelector=spec.nodeName%3D", "timeoutSeconds=1&x=") for line in informers(10, 300)]
    usage = usage_of(tmp_path, lines, Owners(pods_of("quiet", 10)))
    (cost,) = by_caller(usage.observed.usages, TEN, TEN.at(100), {})
    assert cost.growth is Growth.PER_NODE_SQUARED
    assert cost.today.events == pytest.approx(10 * 0.5, rel=0.01)
    assert cost.planned.events == pytest.approx(100 * 5, rel=0.01)


def test_writes_in_the_log_are_the_changes_that_watchers_receive(tmp_path: Path) -> None:
    lines = [
        event("patch", "pods", at, subresource="status", name="p", namespace="x", user="admin", code=code)
        for at in range(101)
        for code in (200, 409)
    ]
    usage = usage_of(tmp_path, lines, Owners())
    assert usage.observed.changes == {"pods": pytest.approx(1.0, rel=0.02)}
    (found,) = usage.observed.usages
    assert found.shape.resource == "pods/status"


def test_empty_log_has_no_usage(tmp_path: Path) -> None:
    usage = usage_of(tmp_path, [], Owners())
    assert usage.observed.usages == ()
    assert usage.observed.seconds == 0.0
    assert expensive(usage, TEN, planned=100) == []


def agent(pod: int, at: float, resource: str = "pods", verb: str = "list", **more: Any) -> str:
    return event(verb, resource, at, pod=f"telemetry-{pod}", node=f"node-{pod}", **more)


def test_daemonset_that_lists_its_own_pods_grows_per_node_squared(tmp_path: Path) -> None:
    query = {"labelSelector": "app=telemetry"}
    lines = [agent(pod, at, namespace="monitoring", query=query) for at in range(0, 60, 2) for pod in range(10)]
    usage = usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10)))
    ((cost, reference),) = expensive(usage, TEN, planned=100)
    assert cost.growth is Growth.PER_NODE_SQUARED
    assert cost.today.objects == pytest.approx(10 * 10 / 2, rel=0.02)
    assert reference.planned.objects == pytest.approx(7500 * 7500 / 2, rel=0.02)


def test_list_of_another_namespace_does_not_grow(tmp_path: Path) -> None:
    lines = [agent(pod, at, namespace="other") for at in range(0, 60, 2) for pod in range(10)]
    (cost,) = by_caller(usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10))).observed.usages, TEN, TEN, {})
    assert cost.growth is Growth.PER_NODE


def test_list_with_a_selector_counts_all_objects_that_the_api_server_looks_at(tmp_path: Path) -> None:
    lines = [agent(pod, at, query={"labelSelector": "gpu!=none"}) for at in range(0, 60, 2) for pod in range(10)]
    usage = usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10)))
    ((cost, _),) = expensive(usage, TEN, planned=100)
    assert cost.growth is Growth.PER_NODE_SQUARED
    assert cost.today.objects == pytest.approx(10 * 120 / 2, rel=0.02)


def test_gets_of_the_pods_of_its_own_node_do_not_grow_with_the_cluster(tmp_path: Path) -> None:
    lines = [
        agent(pod, at + number / 20, verb="get", namespace="x", name=f"p-{pod}-{number}")
        for at in range(0, 60, 5)
        for pod in range(10)
        for number in range(12)
    ]
    (cost,) = by_caller(usage_of(tmp_path, lines, Owners(pods_of("telemetry", 10))).observed.usages, TEN, TEN, {})
    assert cost.growth is Growth.PER_NODE


@pytest.mark.slow
def test_pods_nodes_and_names_of_a_client_that_invents_them_are_remembered_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("INSTANCES_MAX", "NAMES_ALL_MAX", "OPEN_WATCHES_MAX"):
        monkeypatch.setattr(f"muster.doctor.costs.tally.{limit}", 200)
    tally = Tally(Owners())
    tracemalloc.start()
    try:
        for number in range(4_000):
            user = f"system:serviceaccount:x:{number % 3}"
            made_up = {"user": user, "pod": f"p{number}", "node": f"n{number}", "name": f"o{number}"}
            tally.add(RequestLine(time=float(number), verb="get", resource="pods", **made_up))
            tally.add(RequestLine(time=float(number), verb="watch", open=True, id=f"{number}", **made_up))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1 << 20
    assert sum(usage.calls for usage in tally.finish().usages) == 8_000
