"""What agents and tests said becomes what asks for something to be done; silence becomes death only with two signs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from muster.api.names import LABEL_POOL
from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.api.node_remediation import CAUSES_MAX, NodeRemediation, NodeRemediationSpec, NodeRemediationStatus
from muster.api.preflight import PassedTest, Preflight, PreflightFailure, PreflightSpec
from muster.fleet.health.finding import Finding
from muster.fleet.health.policytext import default_policy, read_policy
from muster.fleet.health.record import observed
from muster.fleet.remediation.config import Dead
from muster.fleet.remediation.evidence.dead_nodes import (
    FRESH_S,
    WITNESSES,
    Death,
    Silence,
    dead,
    look,
    standing,
    suspects,
    unreached,
    witnesses,
)
from muster.fleet.remediation.evidence.sources import evidence_of, judged
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.snapshot import Evidence
from muster.kube.objects.meta import ObjectMeta
from tests.unit.remediation.remediationworld import World

NOW = 1_000_000.0
POLICY = default_policy()
XID_79 = Finding(check="xid", component="0000:3b:00", code="79", first_s=NOW - 5, last_s=NOW - 5)


def health(*findings: Finding, uid: str = "u") -> NodeHealth:
    status = NodeHealthStatus(node_uid=uid, boot_id="b", findings=tuple(map(observed, findings)))
    return NodeHealth(metadata=ObjectMeta(name="n"), status=status)


def preflight(passed: bool, at: float, *, uid: str = "u", boot: str = "b", level: int = 2) -> Preflight:
    failures = () if passed else (PreflightFailure(test="matmul", code="wrong", gpu="GPU-1", message="not equal"),)
    moment = datetime.fromtimestamp(at, UTC)
    spec = PreflightSpec(node_uid=uid, boot_id=boot, level=level, passed=passed, time=moment, failures=failures)
    return Preflight(metadata=ObjectMeta(name="n"), spec=spec)


def found(said: NodeHealth | None, test: Preflight | None = None, now: float = NOW) -> Evidence | None:
    return evidence_of(judged("u", "b", {}, said, test, None, POLICY, now).decision)[0]


def test_the_policy_and_its_line_decide() -> None:
    each = found(health(XID_79))
    assert each is not None
    assert each.action == "reboot"
    assert each.key == "xid/79"
    assert "catalogue.yaml:" in each.rule
    assert each.findings[0].component == "0000:3b:00"


def test_findings_of_one_moment_keep_the_order_of_the_policy() -> None:
    """Without an order of its own each process would record another cause."""
    faults = [replace(XID_79, component=f"0000:{bus:02x}:00") for bus in range(12)]
    decision = judged("u", "b", {}, health(*faults), None, None, POLICY, NOW).decision
    each = evidence_of(decision)[0]
    assert each is not None
    ordered = list(dict.fromkeys(finding for reason in decision.reasons for finding in reason.findings))
    assert list(each.findings) == ordered[-CAUSES_MAX:]


def test_a_revoked_pass_still_clears_earlier_findings() -> None:
    """Issue 11.34: another driver revoked the pass, and an old finding had a healthy machine replaced (seed 888005)."""
    test = preflight(passed=True, at=NOW - 1, level=3)
    revoked = replace(test, spec=replace(test.spec, revoked_time=datetime.fromtimestamp(NOW, UTC)))
    assert found(health(XID_79), test) is None
    assert found(health(XID_79), revoked) is None
    later = replace(XID_79, first_s=NOW + 1, last_s=NOW + 1)
    assert found(health(later), revoked, NOW + 2) is not None


def test_a_revoked_failure_is_not_evidence() -> None:
    """Issue 11.34: the failed test was of another driver."""
    test = preflight(passed=False, at=NOW - 1)
    assert found(None, test) is not None
    assert found(None, replace(test, spec=replace(test.spec, revoked_time=datetime.fromtimestamp(NOW, UTC)))) is None


def test_the_policy_of_the_nodes_pool_decides() -> None:
    text = "version: 1\nrevision: t\nextends: default\npools:\n- name: old\n  nodeSelector: {muster.dev/pool: old}\n"
    policy = read_policy(text + "  codes: {xid: {79: {action: replace}}}\n", "mine")
    answers = [
        evidence_of(judged("u", "b", {LABEL_POOL: pool}, health(XID_79), None, None, policy, NOW).decision)[0]
        for pool in ("old", "new")
    ]
    assert [each.action for each in answers if each is not None] == ["replace", "reboot"]


def test_report_about_another_node_of_the_same_name_does_not_count() -> None:
    assert found(health(XID_79, uid="before")) is None
    assert found(None, preflight(False, NOW, uid="before")) is None
    assert found(None, preflight(False, NOW, boot="before")) is None


def test_a_test_that_failed_is_evidence_and_one_that_passed_clears() -> None:
    failed = found(None, preflight(False, NOW - 1))
    assert failed is not None
    assert (failed.key, failed.action) == ("preflight/failed", "reset-gpu")
    assert found(health(XID_79), preflight(True, NOW - 1, level=3)) is None
    assert found(health(XID_79), preflight(True, NOW - 10, level=3)) is not None


def test_a_pass_of_too_low_a_level_clears_nothing() -> None:
    """Xid 31 twice on one GPU asks for level 3."""
    times = (NOW - 200, NOW - 100)
    twice = [replace(XID_79, code="31", first_s=time, last_s=time) for time in times]
    asked = found(health(*twice))
    assert asked is not None
    assert asked.test == 3
    assert found(health(*twice), preflight(True, NOW - 1, level=2)) is not None
    assert found(health(*twice), preflight(True, NOW - 1, level=3)) is None


def with_passes(*passes: PassedTest) -> NodeRemediation:
    spec, status = NodeRemediationSpec(node="n", node_uid="u"), NodeRemediationStatus(state="Released", passes=passes)
    return NodeRemediation(metadata=ObjectMeta(name="n-u"), spec=spec, status=status)


def clearing(level: int, at: float) -> PassedTest:
    return PassedTest(level=level, time=datetime.fromtimestamp(at, UTC))


def test_a_pass_that_clears_findings_is_to_be_written_once() -> None:
    """Issue 11: the Preflight record holds its newest result only."""
    said = judged("u", "b", {}, health(XID_79), preflight(True, NOW - 1, level=3), None, POLICY, NOW)
    assert said.cleared == clearing(3, NOW - 1)
    session = with_passes(clearing(3, NOW - 1))
    assert judged("u", "b", {}, health(XID_79), preflight(True, NOW - 1, level=3), session, POLICY, NOW).cleared is None
    assert judged("u", "b", {}, health(), preflight(True, NOW - 1, level=3), None, POLICY, NOW).cleared is None


def test_a_failed_test_does_not_bring_back_what_the_pass_before_it_cleared() -> None:
    """Issue 11: its record names that pass."""
    failed = preflight(False, NOW, boot="before")
    later = replace(failed, spec=replace(failed.spec, last_pass=clearing(3, NOW - 1)))
    said = judged("u", "b", {}, health(XID_79), later, None, POLICY, NOW)
    assert (said.decision.action, said.cleared) == ("none", clearing(3, NOW - 1))
    assert judged("u", "b", {}, health(XID_79), failed, None, POLICY, NOW).decision.action == "reboot"


@pytest.mark.parametrize("test", [None, preflight(False, NOW, boot="before")], ids=["deleted", "failed"])
def test_findings_stay_cleared_after_the_record_of_the_pass_is_gone(test: Preflight | None) -> None:
    """Issue 11: a later failure replaces the record, and a person may delete it."""
    session = with_passes(clearing(3, NOW - 1))
    assert judged("u", "b", {}, health(XID_79), test, session, POLICY, NOW).decision.action == "none"
    later = replace(XID_79, first_s=NOW, last_s=NOW)
    assert judged("u", "b", {}, health(later), test, session, POLICY, NOW + 1).decision.action == "reboot"


def test_each_finding_is_cleared_by_a_pass_of_the_level_that_it_asks_for() -> None:
    """Issue 11: level 3 cleared the first findings, and level 1 what came after them."""
    twice = [replace(XID_79, code="31", first_s=NOW - ago_s, last_s=NOW - ago_s) for ago_s in (200.0, 100.0)]
    failed = health(*twice, XID_79)
    assert judged("u", "b", {}, failed, None, None, POLICY, NOW).decision.test == 3
    low, high = clearing(1, NOW - 1), clearing(3, NOW - 50)
    assert judged("u", "b", {}, failed, None, with_passes(low), POLICY, NOW).decision.action != "none"
    after_high = judged("u", "b", {}, failed, None, with_passes(high), POLICY, NOW).decision
    assert after_high.action == "reboot"
    needed = clearing(max(1, after_high.test), NOW - 1)
    assert judged("u", "b", {}, failed, None, with_passes(high, needed), POLICY, NOW).decision.action == "none"


def test_a_later_finding_that_asks_for_a_higher_level_does_not_bring_back_earlier_ones() -> None:
    """Issue 11: else a failed test, or Xid 31, would take from the pass before it what that cleared."""
    times = (NOW - 20, NOW - 10)
    later = [replace(XID_79, code="31", first_s=time, last_s=time) for time in times]
    old = replace(XID_79, code="94", first_s=NOW - 50, last_s=NOW - 50)
    assert found(health(old)) is not None
    assert found(health(old), preflight(True, NOW - 40)) is None
    decision = judged("u", "b", {}, health(old, *later), preflight(True, NOW - 40), None, POLICY, NOW).decision
    assert decision.test == 3
    assert {finding.code for reason in decision.reasons for finding in reason.findings} == {"31"}


def test_the_passes_that_are_kept_are_the_newest_of_each_level() -> None:
    """Issue 11: so the field stays small."""
    status = NodeRemediationStatus()
    for number, level in enumerate((1, 3, 2, 1, 1, 2)):
        status = record.with_pass(status, clearing(level, NOW + number))
    assert status.passes == (clearing(3, NOW + 1), clearing(2, NOW + 5))


def test_expired_evidence_causes_nothing_and_names_the_time() -> None:
    each, due = evidence_of(judged("u", "b", {}, health(XID_79), None, None, POLICY, NOW).decision)
    assert each is not None
    assert due is not None
    assert found(health(XID_79), now=due + 1) is None


def test_a_node_remediated_again_and_again_goes_to_a_person() -> None:
    world = World(20)
    for number in range(6):
        world.now += 3600
        world.fault("n0", "quarantine")
        world.settle()
        world.test("n0")
        world.settle()
        session = world.session("n0")
        finding = replace(XID_79, first_s=world.now + 1, last_s=world.now + 1)
        uid = world.nodes["n0"].uid
        each = evidence_of(
            judged(uid, "b0", {}, health(finding, uid=uid), None, session, POLICY, world.now + 2).decision
        )[0]
        assert each is not None
        assert each.action == ("human" if number >= 4 else "reboot"), "five in a week"


def by(**reports: str) -> dict[str, dict[str, float]]:
    """By reporter, the nodes of one letter each that it cannot reach, tried just now."""
    return {reporter: dict.fromkeys(names, NOW) for reporter, names in reports.items()}


REPORTS = by(a="x", b="x", c="")
RENEWED = NOW - 15
"""When the node renewed its Lease last; its peers missed it after that."""
NODES = ("a", "b", "c", "d", "x", "y", "z")


def test_peers_are_believed_from_the_second_on() -> None:
    assert suspects(REPORTS, NODES, Dead()) == ("x",)
    assert suspects(by(a="x"), NODES, Dead()) == ()
    assert suspects(REPORTS, NODES, Dead(enabled=False)) == ()


def test_many_unreached_nodes_at_once_are_left_alone() -> None:
    """A switch, or a partition: half of the nodes cannot reach the other half."""
    halves = ({"a", "b", "c", "d"}, {"w", "x", "y", "z"})
    reports = {name: dict.fromkeys(halves[1 - side], NOW) for side in (0, 1) for name in halves[side]}
    assert suspects(reports, [*halves[0], *halves[1]], Dead()) == ()


def test_a_partition_is_one_though_most_of_its_nodes_are_missed_by_one_peer_alone() -> None:
    """Their other peers are cut off as well, and reach the API server no more than they do."""
    reports = by(a="wx", b="w", c="wy", d="z")
    known = ["a", "b", "c", "d", "v", "w", "x", "y", "z"]
    assert suspects(reports, known, Dead(nodes=2)) == ()
    assert suspects(reports, known, Dead(nodes=3)) == ("w",)


def test_one_that_only_looks_wrongly_does_not_hide_a_death() -> None:
    reports = {**REPORTS, **by(c="dyz")}
    assert suspects(reports, NODES, Dead(nodes=1)) == ("x",)


def test_isolated_node_accuses_no_peer() -> None:
    reports = {**REPORTS, **by(x="abcd")}
    assert suspects(reports, NODES, Dead()) == ("x",)


@pytest.mark.parametrize(("later_s", "renewed_s", "gone"), [(21, 0, True), (12, 0, False), (21, 10, False)])
def test_a_lease_has_to_stand_still_while_it_is_watched(later_s: float, renewed_s: float, gone: bool) -> None:
    first = look({}, {"x": RENEWED}, NOW)
    assert first == {"x": Silence(RENEWED, NOW)}
    then = look(first, {"x": RENEWED + renewed_s}, NOW + later_s)
    assert bool(dead(("x",), then, REPORTS, NOW + later_s, Dead())) is gone


def test_reports_from_before_the_node_renewed_its_lease_do_not_count() -> None:
    """Issue 11: a node was back, its peers' old reports stood, and then it lost the API server alone (seed 930112)."""
    came_back = {"x": Silence(NOW + 60, NOW + 70)}
    assert dead(("x",), came_back, REPORTS, NOW + 120, Dead()) == {}
    one = {**REPORTS, "a": {"x": NOW + 80}}
    assert dead(("x",), came_back, one, NOW + 120, Dead()) == {}, "one peer that confirms its report is not enough"
    both = {**one, "b": {"x": NOW + 85}}
    assert "a, b cannot reach it" in dead(("x",), came_back, both, NOW + 120, Dead())["x"].why


def test_a_kubelet_whose_clock_is_fast_is_not_alive_later_than_its_lease_was_read() -> None:
    """Issue 11: else reports of its death would not count for as long as its clock is ahead."""
    fast = look({}, {"x": NOW + 3600}, NOW - 5)
    assert standing(REPORTS, fast) == REPORTS
    assert "x" in dead(("x",), fast, REPORTS, NOW + 30, Dead())


def test_a_node_found_dead_stays_dead_without_reports_until_its_lease_is_renewed() -> None:
    """Issue 11: also for the next leader, which reads when the Lease was renewed last from the session."""
    silent, before = {"x": Silence(RENEWED, NOW)}, {"x": Death("why", RENEWED)}
    assert dead(("x",), silent, {}, NOW, Dead(), before) == before, "it is not watched once more"
    assert dead(("x",), {}, {}, NOW, Dead(), before) == before, "a Lease that could not be read says nothing"
    assert dead(("x",), silent, {}, NOW + 30, Dead()) == {}, "a silent Lease alone is not a death"
    assert dead(("x",), {"x": Silence(NOW + 5, NOW + 6)}, {}, NOW + 30, Dead(), before) == {}


def test_a_lease_that_cannot_be_read_says_nothing() -> None:
    first = look({}, {"x": RENEWED}, NOW)
    assert look(first, {}, NOW + 60) == {}
    assert dead(("x",), {}, REPORTS, NOW + 60, Dead()) == {}


def test_old_peer_reports_are_not_evidence() -> None:
    said = Finding(check="reach", component="x", code="unreached", first_s=NOW - 500, last_s=NOW)
    assert unreached([said], NOW) == {"x": NOW}
    assert unreached([said], NOW + FRESH_S + 1) == {}


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (12, 12), (7_500, WITNESSES)])
def test_witnesses_are_few_spread_over_the_nodes_and_stay_while_suspects_change(nodes: int, most: int) -> None:
    known = [f"n{number:04}" for number in range(nodes)]
    every = witnesses((), known)
    assert len(every) <= most
    assert every[-1] >= known[nodes - 1 - nodes // WITNESSES]
    assert witnesses(every[:1], known) == every[1:]


def test_a_lease_that_stopped_long_ago_does_not_excuse_a_death_now() -> None:
    config = Dead(silent_s=20, nodes=3)
    reports = {name: {"n0": NOW} for name in ("n1", "n2")}
    long_off = {f"off{number}": Silence(NOW - 5_000, NOW - 30) for number in range(9)}
    together = {f"off{number}": Silence(NOW - 50, NOW - 30) for number in range(9)}
    suspect = {"n0": Silence(NOW - 40, NOW - 30)}
    assert dead(["n0"], suspect | long_off, reports, NOW, config).keys() == {"n0"}
    assert not dead(["n0"], suspect | together, reports, NOW, config)


@pytest.mark.parametrize("looks_s", [(-110, -90, -5), (-110, -5), (-12, -2)])
def test_last_node_of_a_partition_to_renew_its_lease_is_not_dead(looks_s: tuple[int, ...]) -> None:
    """Seed 991182: the others renewed a moment before. Leases that we saw only once do not show a partition."""
    config = Dead(silent_s=20, nodes=3)
    reports = {name: {"n0": NOW} for name in ("n1", "n2")}
    silences: dict[str, Silence] = {}
    others = {f"back{number}": NOW - 120 for number in range(9)}
    for look_s in looks_s:
        silences = look(silences, others, NOW + look_s)
    silences = look(silences, dict.fromkeys(others, NOW - 1), NOW)
    silences["n0"] = Silence(NOW - 120, NOW - 110)
    seen_s = looks_s[-1] - looks_s[0]
    assert bool(dead(["n0"], silences, reports, NOW, config)) is (seen_s < config.silent_s)
