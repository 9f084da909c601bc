"""The mesh: who looks at whom, and who is at fault when some do not reach others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.node_health import NodeHealth, NodeHealthStatus, ObservedFinding
from muster.fleet.health.finding import Finding
from muster.fleet.health.mesh import Report, Verdict, findings, judge, report_of
from muster.fleet.health.peers import Member, choose, domains_of
from muster.fleet.health.record import observed
from muster.kube.objects.meta import ObjectMeta

NOW_S = 1_000_000.0
FRESH_S = 400.0


def fleet(zones: int, switches: int, nodes: int) -> list[Member]:
    return [
        Member(f"n{zone}-{switch}-{node:02}", "10.0.0.1", (f"z{zone}", f"s{switch}"))
        for zone in range(zones)
        for switch in range(switches)
        for node in range(nodes)
    ]


def heard(members: Sequence[Member], fails: Callable[[Member, Member], bool]) -> dict[str, Report]:
    """What all of them say, where it depends on the pair whether one reaches the other."""
    by_name = {member.name: member for member in members}
    return {
        name: Report(time_s=NOW_S, unreached=frozenset(each for each in peers if fails(by_name[name], by_name[each])))
        for name, peers in choose(members).items()
    }


def verdict(members: Sequence[Member], fails: Callable[[Member, Member], bool]) -> Verdict:
    return judge(members, heard(members, fails), NOW_S, FRESH_S)


def among(*names: str) -> Callable[[Member, Member], bool]:
    return lambda one, other: one.name in names or other.name in names


def crossing(domain: str) -> Callable[[Member, Member], bool]:
    return lambda one, other: (domain in domains_of(one)) != (domain in domains_of(other))


shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9))


@given(shapes, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_all_nodes_choose_the_same_few_witnesses_and_each_node_is_watched(
    shape: tuple[int, int, int], order: random.Random
) -> None:
    members = fleet(*shape)
    chosen = choose(members)
    shuffled = list(members)
    order.shuffle(shuffled)
    assert choose(shuffled) == chosen
    assert all(choose(shuffled, only=member.name) == {member.name: chosen[member.name]} for member in members[:3])
    looked_at = Counter(target for targets in chosen.values() for target in targets)
    for name, targets in chosen.items():
        assert name not in targets
        assert len(set(targets)) == len(targets) <= 7
        assert len(members) == 1 or targets
        assert len(members) == 1 or looked_at[name] >= 1


def test_one_that_joins_changes_the_peers_of_a_few_only() -> None:
    members = fleet(2, 8, 16)
    before, after = choose(members), choose([*members, Member("n0-3-99", "10.0.0.1", ("z0", "s3"))])
    changed = [name for name in before if before[name] != after[name]]
    assert len(changed) <= 2 * 16  # its own switch's ring, and ranks that are shared with it


@given(shapes, st.data())
@settings(max_examples=30, deadline=None)
def test_only_the_node_that_is_cut_is_ever_blamed(shape: tuple[int, int, int], data: st.DataObject) -> None:
    members = fleet(*shape)
    bad = data.draw(st.sampled_from(members)).name
    found = verdict(members, among(bad))
    if len(members) >= 4 and shape[2] >= 4:
        assert found == Verdict(nodes=(bad,))
    else:  # so few cannot say which end it is, but no other node may be blamed
        assert set(found.nodes) | set(found.probers) <= {bad} or len(members) < 4 or shape[2] < 4


@given(st.integers(1, 3), st.integers(3, 8), st.integers(2, 9), st.data())
@settings(max_examples=30, deadline=None)
def test_nodes_are_never_blamed_for_their_switch(zones: int, switches: int, nodes: int, data: st.DataObject) -> None:
    members = fleet(zones, switches, nodes)
    bad = data.draw(st.sampled_from(sorted({domains_of(member)[1] for member in members})))
    assert verdict(members, crossing(bad)) == Verdict(domains=(bad,))


@given(st.integers(3, 5), st.integers(2, 4), st.integers(2, 6), st.data())
@settings(max_examples=20, deadline=None)
def test_switches_are_never_blamed_for_their_zone(zones: int, switches: int, nodes: int, data: st.DataObject) -> None:
    bad = f"z{data.draw(st.integers(0, zones - 1))}"
    assert verdict(fleet(zones, switches, nodes), crossing(bad)) == Verdict(domains=(bad,))


@given(st.integers(1, 3), st.integers(1, 6), st.integers(5, 9), st.data())
@settings(max_examples=30, deadline=None)
def test_no_peer_is_blamed_by_a_node_that_reaches_none(
    zones: int, switches: int, nodes: int, data: st.DataObject
) -> None:
    members = fleet(zones, switches, nodes)
    bad = data.draw(st.sampled_from(members)).name
    assert verdict(members, lambda one, other: one.name == bad) == Verdict(probers=(bad,))


@given(st.integers(1, 3), st.integers(3, 6), st.integers(6, 9), st.data())
@settings(max_examples=25, deadline=None)
def test_node_and_remote_switch_are_distinguished(zones: int, switches: int, nodes: int, data: st.DataObject) -> None:
    members = fleet(zones, switches, nodes)
    node = data.draw(st.sampled_from(members))
    switch = data.draw(st.sampled_from(sorted({domains_of(member)[1] for member in members} - {domains_of(node)[1]})))
    one, other = among(node.name), crossing(switch)
    found = verdict(members, lambda a, b: one(a, b) or other(a, b))
    assert found == Verdict(nodes=(node.name,), domains=(switch,))


@pytest.mark.parametrize(("zones", "switches"), [(1, 2), (2, 1), (2, 3)])
def test_of_two_that_do_not_reach_each_other_neither_is_blamed(zones: int, switches: int) -> None:
    members = fleet(zones, switches, 5)
    ends = ("z0", "z1") if zones == 2 else ("z0/s0", "z0/s1")
    assert verdict(members, crossing(ends[0])) == Verdict(splits=(ends,))


def test_of_two_the_one_that_no_longer_says_anything_is_at_fault() -> None:
    members = fleet(1, 2, 5)
    reports = heard(members, crossing("z0/s1"))
    silent = {name: Report(time_s=NOW_S - FRESH_S - 1) for name in reports if name.startswith("n0-1")}
    assert judge(members, {**reports, **silent}, NOW_S, FRESH_S) == Verdict(domains=("z0/s1",))


def test_one_other_domain_alone_is_not_believed() -> None:
    """Nodes of s2 report nothing, so only s1 reports on s0: either of the two may be at fault."""
    members = fleet(1, 3, 5)
    ends = {"z0/s0", "z0/s1"}
    reports = heard(members, lambda one, other: {domains_of(one)[1], domains_of(other)[1]} == ends)
    silent = {name: Report(time_s=NOW_S - FRESH_S - 1) for name in reports if name.startswith("n0-2")}
    assert judge(members, {**reports, **silent}, NOW_S, FRESH_S) == Verdict(splits=(("z0/s0", "z0/s1"),))


def test_network_that_is_down_altogether_takes_no_node_out() -> None:
    found = verdict(fleet(1, 4, 4), lambda one, other: domains_of(one) != domains_of(other))
    assert (found.nodes, found.domains) == ((), ())
    assert len(found.splits) == 6


def test_single_losses_are_nothing() -> None:
    members = fleet(2, 3, 6)
    lost = {(name, peers[0]) for name, peers in list(choose(members).items())[::7]}
    assert verdict(members, lambda one, other: (one.name, other.name) in lost) == Verdict()


def test_old_reports_are_not_evidence() -> None:
    members = fleet(1, 1, 8)
    reports = {name: Report(time_s=NOW_S - FRESH_S - 1, unreached=frozenset(choose(members)[name])) for name in
               choose(members)}  # fmt: skip
    assert judge(members, reports, NOW_S, FRESH_S) == Verdict()


def test_garbage_is_not_evidence() -> None:
    members = [*fleet(1, 2, 4), Member("n0-0-00", "elsewhere", ("z9", "s9"))]
    reports = {"missing": Report(time_s=NOW_S, unreached=frozenset({"n0-0-01"}))}
    reports["n0-0-02"] = Report(time_s=NOW_S, unreached=frozenset({"missing", "n0-0-02", ""}))
    assert judge(members, reports, NOW_S, FRESH_S) == Verdict()
    assert judge([], reports, NOW_S, FRESH_S) == Verdict()


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.lists(st.sampled_from("xyz"), max_size=3))))
@settings(max_examples=40, deadline=None)
def test_labels_of_any_depth_leave_no_node_out(named: list[tuple[str, list[str]]]) -> None:
    members = [Member(name, "10.0.0.1", tuple(domains)) for name, domains in named]
    chosen = choose(members)
    assert set(chosen) == {name for name, _ in named}
    assert all(set(peers) <= set(chosen) - {name} for name, peers in chosen.items())
    judge(members, heard(members, lambda one, other: one.domains != other.domains), NOW_S, FRESH_S)


def test_a_fleet_without_labels_is_one_ring() -> None:
    members = [Member(f"n{index}", "10.0.0.1") for index in range(12)]
    assert verdict(members, among("n5")) == Verdict(nodes=("n5",))


def test_records_of_nodes_say_whom_they_do_not_reach() -> None:
    def seen(component: str, ago_s: float, code: str = "unreached", check: str = "reach") -> ObservedFinding:
        last = NOW_S - ago_s
        return observed(Finding(check=check, component=component, code=code, first_s=last - 50, last_s=last))

    findings = (seen("a", 0), seen("b", 290), seen("over", 310), seen("", 0, "no-peers"), seen("eth0", 0, check="nic"))
    status = NodeHealthStatus(time=datetime.fromtimestamp(NOW_S, UTC), findings=findings)
    health = NodeHealth(metadata=ObjectMeta(name="n"), status=status)
    missed_s = {"a": NOW_S, "b": NOW_S - 290}
    assert report_of(health) == Report(time_s=NOW_S, unreached=frozenset(missed_s), missed_s=missed_s)
    assert report_of(NodeHealth(metadata=ObjectMeta(name="n"))) is None


def test_all_nodes_of_a_domain_hear_of_it_and_the_others_of_themselves() -> None:
    members = fleet(1, 3, 6)
    said = findings(
        Verdict(nodes=("n0-0-01",), domains=("z0/s2",), probers=("n0-1-03",)), members, NOW_S
    )  # fmt: skip
    assert {(name, each.component, each.code) for name, each in said.items()} == {
        ("n0-0-01", "", "node"),
        ("n0-1-03", "", "prober"),
        *((f"n0-2-{node:02}", "z0/s2", "switch") for node in range(6)),
    }
