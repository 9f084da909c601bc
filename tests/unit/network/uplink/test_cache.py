"""Issue 16 B: what the hub counts for nodes that are silent, new or unresponsive."""

from __future__ import annotations

import pytest

from muster.network.uplink.cache import RESTART_S, SILENT_S, UNRESPONSIVE_S, NodeRecord, Owner, UplinkCache
from muster.network.uplink.decide import decide
from muster.network.uplink.plan import Plan
from muster.network.uplink.settings import Settings
from muster.network.uplink.snapshot import Group
from muster.network.uplink.wire import Applied, Pair, PodDemand, Rates, Report

M = 10**6
BUDGET = Pair(1000 * M, 1000 * M)
LINE = Pair(1000 * M, 1000 * M)
SETTINGS = Settings(budget=BUDGET, static=Pair(100 * M, 100 * M), floor=Pair(M, M), lease_s=30.0, decay_s=60.0)


def owner(node: str, team: str = "a") -> Owner:
    return Owner(node, "default", "pod", "job", team, 0)


class World:
    """A leader without connections: what agents send is recorded here."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.now, self.seq = 0.0, 0
        self.cache = UplinkCache(settings, self.now)

    def join(self, name: str, total: Pair = Pair(0, 0)) -> NodeRecord:  # noqa: B008
        self.cache.node_changed(name, True, self.now)
        record = self.cache.connected(name)
        self.cache.applied(record, Applied("", 0, total), "e", self.now)
        self.report(record)
        return record

    def report(self, record: NodeRecord, **used: int) -> bool:
        """Report downloads in Mbit/s. Packets of the subject `tcp` wait: it would use 900."""
        pods = {name: PodDemand(each * M, 0, (900 if name == "tcp" else each) * M, 0) for name, each in used.items()}
        return self.cache.reported(record, Report(record.answers + 1, LINE, pods), self.now)

    def plan(self, *, apply: bool = True) -> Plan:
        views, records = self.cache.views()
        plan = decide(self.cache.snapshot(views, self.now))
        for new in plan.nodes:
            self.seq += 1
            record = records[new.node]
            rates = self.cache.rates(record, new, self.seq, "e")
            self.cache.sent(record, rates, self.now)
            if apply:
                self.confirm(record, rates)
        return plan

    def confirm(self, record: NodeRecord, rates: Rates) -> bool:
        return self.cache.applied(record, Applied("e", rates.seq, rates.total), "e", self.now)

    def away(self) -> Pair:
        views, _ = self.cache.views()
        return self.cache.snapshot(views, self.now).away


def test_node_without_an_agent_counts_with_its_static_share() -> None:
    world = World()
    world.join("n1")
    world.plan()
    world.cache.node_changed("n2", True, world.now)
    assert world.away() == Pair(100 * M, 100 * M)
    world.cache.node_changed("n2", False, world.now)
    assert world.away() == Pair(0, 0)


def test_silent_node_counts_with_its_last_limits_and_then_with_its_static_share() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=900)
    world.plan()
    held = record.held()
    assert held.in_bps > 900 * M
    world.cache.disconnected(record)
    assert world.away() == Pair(held.in_bps, 100 * M)
    world.now += 30.0 + SILENT_S + 1.0
    assert world.away() == Pair(100 * M, 100 * M)


def test_limits_of_a_deleted_node_count_until_they_have_decayed() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=900)
    world.plan()
    world.cache.disconnected(record)
    world.cache.node_changed("n1", False, world.now)
    assert world.away() == Pair(record.held().in_bps, 100 * M)
    world.now += 90.0
    assert world.away() == Pair(0, 0)
    assert world.cache.nodes == {}


def test_unconfirmed_rates_count_with_the_larger_limits() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=500)
    world.plan()
    high = record.held()
    world.now += 5.0
    world.report(record, uid=100)
    world.plan(apply=False)
    assert record.held() == high
    assert record.unconfirmed_s == world.now
    assert record.sent is not None
    assert world.confirm(record, record.sent)
    assert record.held().in_bps < 120 * M
    assert record.unconfirmed_s is None


def test_each_unconfirmed_message_counts_because_the_agent_applies_one_after_the_other() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=100)
    world.plan()
    for used in (500, 100):
        world.now += 5.0
        world.report(record, uid=used)
        world.plan(apply=False)
    assert record.held().in_bps > 500 * M
    assert record.sent is not None
    world.confirm(record, record.sent)
    assert record.held().in_bps < 120 * M


def test_new_leader_shares_only_what_the_nodes_that_it_heard_already_have() -> None:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.cache.node_changed(name, True, 0.0)
    first = world.join("n1", Pair(300 * M, 300 * M))
    assert world.away() == Pair(700 * M, 700 * M)
    world.report(first, uid=300)
    world.plan()
    assert first.held().in_bps <= 300 * M
    world.join("n2", Pair(100 * M, 100 * M))
    assert world.away() == Pair(600 * M, 600 * M)
    assert world.cache.warming
    world.join("n3", Pair(100 * M, 100 * M))
    assert world.away() == Pair(0, 0)
    assert not world.cache.warming


def test_connected_node_counts_before_its_first_report() -> None:
    world = World()
    world.cache.node_changed("n1", True, 0.0)
    record = world.cache.connected("n1")
    world.cache.applied(record, Applied("old", 9, Pair(400 * M, 400 * M)), "e", 0.0)
    assert world.away() == Pair(400 * M, 400 * M)


def test_new_leader_stops_waiting_for_nodes_when_all_old_limits_have_decayed() -> None:
    world = World()
    world.cache.node_changed("gone", True, 0.0)
    world.join("n1", Pair(300 * M, 300 * M))
    world.now = 90.0 + RESTART_S - 0.1
    world.away()
    assert world.cache.warming
    world.now += 0.2
    assert world.away() == Pair(100 * M, 100 * M)
    assert not world.cache.warming


def test_pod_of_another_node_is_not_believed() -> None:
    world = World()
    world.cache.pod_changed("uid", owner("n2", "rich"))
    record = world.join("n1")
    world.report(record, uid=100)
    assert world.cache.groups[record.subjects["uid"].group] == Group("", 0)


def test_pod_that_becomes_known_moves_to_its_team() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=100)
    world.cache.pod_changed("uid", owner("n1", "rich"))
    assert world.cache.groups[record.subjects["uid"].group] == Group("rich", 0)


def test_small_traffic_shares_the_limit_of_the_rest_and_sends_nothing() -> None:
    world = World()
    record = world.join("n1")
    world.plan()
    assert not world.report(record, uid=0)
    assert record.subjects == {}
    assert world.plan().nodes == []


def test_subjects_that_use_up_the_limit_of_the_rest_get_limits_of_their_own() -> None:
    world = World()
    record = world.join("n1")
    world.plan()
    pods = {f"uid-{i}": PodDemand(M // 10, 0, M // 10, 0) for i in range(10)}
    world.cache.reported(record, Report(2, LINE, pods), world.now)
    assert len(record.subjects) == 10
    world.plan()
    assert all(each.rate is not None and each.rate.in_bps > 50 * M for each in record.subjects.values())


def test_limit_of_a_pod_that_is_gone_is_taken_back() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=500)
    world.plan()
    assert world.report(record)
    (new,) = world.plan().nodes
    assert (list(new.rate_in), record.held()) == ([], Pair(M, M))


def test_report_of_the_time_before_a_raise_does_not_undo_the_raise() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=10)
    world.plan()
    world.now += 5.0
    world.report(record, uid=11)  # at its limit: it wants more
    world.plan()
    raised = record.held().in_bps
    assert raised > 900 * M
    world.now += 0.5
    world.report(record, uid=11)
    world.plan()
    assert record.held().in_bps == raised
    world.now += 5.0
    world.report(record, uid=11)
    world.plan()
    assert record.held().in_bps < 20 * M


def test_unresponsive_subject_is_named_and_paid_by_its_team() -> None:
    world = World()
    world.cache.pod_changed("flood", owner("n1", "noisy"))
    world.cache.pod_changed("tcp", owner("n2", "calm"))
    noisy, calm = world.join("n1"), world.join("n2")
    for _ in range(20):
        world.now += 1.0
        limit = noisy.subjects["flood"].rate if noisy.subjects else None
        world.report(noisy, flood=800)
        world.report(calm, tcp=1)
        world.plan()
    assert limit is not None
    (found,) = world.cache.unresponsive(world.now)
    assert (found.node, found.subject, found.owner) == ("n1", "flood", owner("n1", "noisy"))
    tcp = calm.subjects["tcp"].rate
    assert tcp is not None
    assert 800 * M + tcp.in_bps <= 1000 * M
    world.now += 1.0
    world.report(noisy, flood=1)
    assert list(world.cache.unresponsive(world.now)) == []


def test_subject_that_exceeds_its_limit_for_a_moment_is_not_unresponsive() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=500)
    world.plan()
    world.now += 5.0
    world.report(record, uid=900)
    world.now += UNRESPONSIVE_S - 0.1
    assert list(world.cache.unresponsive(world.now)) == []


def test_dry_run_names_no_unresponsive_subjects() -> None:
    settings = Settings(budget=Pair(10 * M, 10 * M), floor=Pair(M, M), dry_run=True)
    world = World(settings)
    record = world.join("n1")
    for _ in range(20):
        world.now += 1.0
        world.report(record, uid=800)
        world.plan()
    assert list(world.cache.unresponsive(world.now)) == []
    assert record.sent is not None
    assert record.sent.dry_run


def test_dry_run_needs_no_confirmations() -> None:
    world = World(Settings(budget=Pair(100 * M, 100 * M), floor=Pair(M, M), dry_run=True))
    first, second = world.join("n1"), world.join("n2")
    world.report(first, uid=90)
    world.plan(apply=False)
    world.now += 5.0
    world.report(first, uid=40)
    world.report(second, uid=40)
    world.plan(apply=False)
    world.plan(apply=False)
    assert first.unconfirmed_s is None
    assert [each.held().in_bps // M for each in (first, second)] == [45, 45]


def test_static_shares_of_all_nodes_fit_the_budget() -> None:
    world = World()
    for index in range(57):
        world.cache.node_changed(f"n{index}", True, 0.0)
        static = world.cache.static()
        assert static.in_bps * (index + 1) <= BUDGET.in_bps
        assert static.in_bps <= 100 * M


def test_changed_settings_reach_every_node() -> None:
    world = World()
    record = world.join("n1")
    world.plan()
    world.cache.configure(Settings(budget=BUDGET, floor=Pair(M, M), lease_s=40.0))
    assert len(world.plan().nodes) == 1
    assert record.sent is not None
    assert record.sent.valid_s == 40.0
    assert world.plan().nodes == []


def test_agent_that_returns_gets_its_limits_again() -> None:
    world = World()
    record = world.join("n1")
    world.report(record, uid=500)
    world.plan()
    held = record.held()
    world.cache.disconnected(record)
    again = world.cache.connected("n1")
    assert again is record
    world.cache.applied(record, Applied("", 0, Pair(M, M)), "e", world.now)
    assert record.held() == held, "the agent may still get the old rates"
    world.report(record, uid=500)
    assert len(world.plan().nodes) == 1


@pytest.mark.parametrize("count", [5000])
def test_groups_without_subjects_are_forgotten(count: int) -> None:
    world = World()
    record = world.join("n1")
    for index in range(count):
        world.cache.pod_changed("uid", owner("n1", f"team-{index}"))
        world.report(record, uid=100)
        world.cache.pod_changed("uid", None)
    world.plan()
    assert len(world.cache.groups) <= 2
