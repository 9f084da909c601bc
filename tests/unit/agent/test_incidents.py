"""What checks count becomes incidents: apart where there was a pause, one where there was none, and bounded."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from muster.agent.incidents import OPEN_MAX, Incidents
from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import INCIDENT_S_MAX, PAUSE_S

NOW_S = 1_790_000_000.0


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50), st.sampled_from([1.0, 30.0, 60.0]))
def test_incidents_are_never_merged_torn_or_lost(steps: list[tuple[float, int]], period_s: float) -> None:
    incidents, now_s, reported, counted = Incidents("disk", period_s), NOW_S, dict[float, Finding](), 0
    seen: list[float] = []
    pause_s = max(PAUSE_S, 2.5 * period_s)
    for wait_s, count in steps:
        now_s += wait_s
        incidents.observe("disk", "sda", "io", now_s, count=count)
        counted += count
        seen.append(now_s)
        for finding in incidents.take(now_s):
            assert finding.count >= reported.get(finding.first_s, finding).count, "a count never goes down"
            reported[finding.first_s] = finding
    assert sum(finding.count for finding in reported.values()) == counted
    for finding in reported.values():
        assert finding.last_s - finding.first_s <= max(INCIDENT_S_MAX, 4 * pause_s)
        within = [each for each in seen if finding.first_s <= each <= finding.last_s]
        assert all(after - before <= pause_s for before, after in itertools.pairwise(within))


def test_incidents_are_reported_once() -> None:
    incidents = Incidents("disk")
    incidents.observe("disk", "sda", "io", NOW_S, message="first words")
    assert [each.message for each in incidents.take(NOW_S)] == ["first words"]
    assert incidents.take(NOW_S + 1) == []
    incidents.observe("disk", "sda", "io", NOW_S + 2, message="other words")
    assert [(each.message, each.count) for each in incidents.take(NOW_S + 2)] == [("first words", 2)]


def test_too_many_different_things_are_counted_and_bounded() -> None:
    incidents = Incidents("disk")
    for number in range(OPEN_MAX + 50):
        incidents.observe("disk", f"sd{number}", "io", NOW_S)
    reported = incidents.take(NOW_S)
    assert len(reported) == OPEN_MAX + 1
    assert [(each.component, each.code, each.count) for each in reported if each.check == "agent"] == [
        ("disk", "overflow", 50)
    ]


def test_a_clock_that_is_set_back_makes_another_incident() -> None:
    incidents = Incidents("disk")
    incidents.observe("disk", "sda", "io", NOW_S)
    incidents.observe("disk", "sda", "io", NOW_S - 3600)
    assert len(incidents.take(NOW_S)) == 2
