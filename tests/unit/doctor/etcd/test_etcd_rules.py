"""Rules about etcd: limits, what is silenced, and what is said if only the API server is visible."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from muster.api.finding import Finding, Severity
from muster.doctor.etcd.flags import EtcdFlags, flags_of
from muster.doctor.etcd.members import COMMIT, FAMILIES, FSYNC, EtcdMembers, Member
from muster.doctor.samples import compare, parse
from tests.unit.doctor.conftest import NOW, WINDOW_S, Found

GIB = 2**30


def member(
    before: str = "", after: str = "", *, alarms: tuple[str, ...] | None = (), size: float = GIB, used: float = GIB
) -> EtcdMembers:
    """A member with a quota of 2 GiB, a leader, and two readings of other metrics."""
    gauges = (
        "process_start_time_seconds 1\netcd_server_has_leader 1\netcd_server_quota_backend_bytes 2147483648\n"
        f"etcd_mvcc_db_total_size_in_bytes {size}\netcd_mvcc_db_total_size_in_use_in_bytes {used}\n"
    )
    first, second = (parse(gauges + text, FAMILIES) for text in (before, after))
    server = compare("https://etcd", first, second, WINDOW_S, NOW)
    assert server is not None
    return EtcdMembers((Member("https://etcd", server, alarms),))


def times(family: str, fast: int, slow: int, limit: str) -> str:
    """A histogram with fast observations up to `limit`, and slow ones above it."""
    return (
        f'{family}_bucket{{le="{limit}"}} {fast}\n{family}_bucket{{le="+Inf"}} {fast + slow}\n'
        f"{family}_count {fast + slow}\n{family}_sum 1\n"
    )


def ids(found: Sequence[Finding]) -> list[str]:
    return [each.id for each in found]


def test_healthy_member_has_no_finding(find: Found) -> None:
    fine = times(FSYNC, 1000, 0, "0.016") + times(COMMIT, 1000, 0, "0.032")
    assert find(parts=[member("", fine)]) == []


@pytest.mark.parametrize(("family", "limit"), [(FSYNC, "0.016"), (COMMIT, "0.032")])
def test_slow_disk_is_an_error_from_1_percent_on(find: Found, family: str, limit: str) -> None:
    (found,) = find(parts=[member("", times(family, 500, 10, limit))])
    assert (found.id, found.severity) == ("etcd-disk-slow", Severity.ERROR)
    assert find(parts=[member("", times(family, 2000, 10, limit))]) == []
    assert find(parts=[member("", times(family, 0, 4, limit))]) == [], "one pause of the machine"


def test_disk_that_was_slow_before_the_window_is_not_reported(find: Found) -> None:
    before, after = times(FSYNC, 0, 100, "0.016"), times(FSYNC, 1000, 100, "0.016")
    assert find(parts=[member(before, after)]) == []


def test_time_of_requests_is_used_only_without_metrics_of_etcd(find: Found) -> None:
    name, labels = "etcd_request_duration_seconds", 'operation="create",resource="pods",group=""'
    after = (
        f'{name}_bucket{{{labels},le="0.1"}} 60\n{name}_bucket{{{labels},le="+Inf"}} 90\n'
        f"{name}_count{{{labels}}} 90\n{name}_sum{{{labels}}} 9\n"
    )
    (found,) = find(("", after))
    assert found.id == "etcd-slow"
    assert "33% of create requests" in found.title
    assert find(("", after), parts=[member()]) == []
    assert find(("", after.replace('operation="create"', 'operation="list"'))) == [], "lists of many objects are slow"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1.5, []),
        (1.7, [("etcd-quota-near", Severity.WARNING)]),
        (1.95, [("etcd-quota-near", Severity.ERROR)]),
    ],
)
def test_size_is_compared_with_the_quota(find: Found, size: float, expected: list[tuple[str, Severity]]) -> None:
    found = find(parts=[member(size=size * GIB, used=size * GIB)])
    assert [(each.id, each.severity) for each in found] == expected


def test_alarm_replaces_the_finding_about_the_quota(find: Found) -> None:
    assert ids(find(parts=[member(size=2 * GIB, used=GIB / 4, alarms=("NOSPACE",))])) == ["etcd-full"]
    assert ids(find(parts=[member(alarms=("CORRUPT",))])) == ["etcd-alarm"]


def test_fragmentation_of_a_small_database_is_not_reported(find: Found) -> None:
    assert ids(find(parts=[member(size=GIB, used=GIB / 4)])) == ["etcd-fragmented"]
    assert find(parts=[member(size=GIB / 8, used=0)]) == []


def test_quota_that_cannot_be_seen_is_not_invented(find: Found) -> None:
    page = f'apiserver_storage_size_bytes{{storage_cluster_id="etcd-0"}} {1.9 * GIB}\n'
    (found,) = find((page, page), (page, page))
    assert (found.id, found.severity) == ("etcd-quota-near", Severity.WARNING)
    assert "cannot be seen" in found.title
    assert find((page, page), parts=[EtcdFlags(False, 8.0 * GIB)]) == []


def requests(failed: dict[str, int], asked: dict[str, int]) -> str:
    names = {"etcd_request_errors_total": failed, "etcd_requests_total": asked}
    lines = [
        f'{name}{{operation="{operation}",resource="pods",group=""}} {count}'
        for name, counts in names.items()
        for operation, count in counts.items()
    ]
    return "\n".join([*lines, 'apiserver_request_total{verb="POST",resource="pods",code="500"} 50', ""])


def test_refused_writes_are_the_only_finding_about_their_errors(find: Found) -> None:
    (found,) = find(("", requests({"create": 50}, {"create": 60, "get": 100})))
    assert (found.id, found.severity) == ("etcd-full", Severity.ERROR)


def test_etcd_that_also_fails_reads_is_not_called_full(find: Found) -> None:
    assert ids(find(("", requests({"create": 50, "get": 90}, {"create": 60, "get": 100})))) == ["server-errors"]


def test_missing_leader_and_changes_are_reported(find: Found) -> None:
    gone = member("", "etcd_server_has_leader 0\n")
    assert [(each.id, each.severity) for each in find(parts=[gone])] == [("etcd-no-leader", Severity.ERROR)]
    changes = "etcd_server_leader_changes_seen_total"
    assert ids(find(parts=[member(f"{changes} 3\n", f"{changes} 5\n")])) == ["etcd-leader-changes"]
    assert find(parts=[member(f"{changes} 3\n", f"{changes} 3\n")]) == []


def events_page(events: int, others: int, writes: int) -> str:
    labels = 'operation="create",group=""'
    return (
        f'apiserver_resource_objects{{group="",resource="events"}} {events}\n'
        f'apiserver_resource_objects{{group="",resource="pods"}} {others}\n'
        f'etcd_requests_total{{{labels},resource="events"}} {writes}\n'
        f'etcd_requests_total{{{labels},resource="pods"}} 100\n'
    )


@pytest.mark.parametrize(
    ("page", "parts", "expected"),
    [
        (events_page(200_000, 1000, 0), [], ["etcd-events-share"]),
        (events_page(200_000, 300_000, 0), [], []),
        (events_page(0, 1000, 1000), [EtcdFlags(False)], ["etcd-events-share"]),
        (events_page(0, 1000, 1000), [EtcdFlags(True)], []),
        (events_page(0, 1000, 1000), [EtcdFlags(None)], []),
        (events_page(0, 1000, 100), [], []),
    ],
    ids=["stored", "less-than-others", "written", "split", "perhaps-split", "few-writes"],
)
def test_events_are_reported_if_they_are_most_of_etcd(
    find: Found, page: str, parts: list[EtcdFlags], expected: list[str]
) -> None:
    before = events_page(0, 0, 0).replace(" 100\n", " 0\n")
    assert ids(find((before, page), parts=parts)) == expected


def pod(component: str, *words: str) -> dict[str, object]:
    return {"metadata": {"labels": {"component": component}}, "spec": {"containers": [{"command": [*words]}]}}


def test_split_is_read_from_every_api_server() -> None:
    split = pod("kube-apiserver", "kube-apiserver", "--etcd-servers-overrides=/pods#a,/events#https://b;https://c")
    other = pod("kube-apiserver", "kube-apiserver")
    quota = pod("etcd", "etcd", "--quota-backend-bytes=100", "--quota-backend-bytes=4294967296")
    assert flags_of([split, quota]) == EtcdFlags(True, 4.0 * GIB)
    assert flags_of([split, other]) == EtcdFlags(False)
    assert flags_of([quota]) is None
