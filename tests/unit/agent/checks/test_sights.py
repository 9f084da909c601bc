"""Looks become findings: what no sequence of looks may do to incidents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.checks.sights import COMPONENT_MAX, MESSAGE_MAX, Findings, Seen, Sight
from muster.fleet.health.finding import Finding

PERIOD_S = 30.0
sights = st.builds(
    Sight, st.just("disk"), st.sampled_from(["a", "b"]), st.sampled_from(["slow", "full"]),
    times=st.integers(0, 5), looks=st.integers(1, 3),
)  # fmt: skip
looks = st.lists(
    st.tuples(st.floats(0.1, 400.0), st.lists(sights, max_size=3), st.lists(sights, max_size=3)), max_size=40
)


def reported(findings: Findings, looked: list[tuple[float, list[Sight], list[Sight]]]) -> list[Finding]:
    now_s, found = 1000.0, []
    for pause_s, states, events in looked:
        now_s += pause_s
        apart = tuple(each._replace(check="state") for each in states)
        found += findings.take(Seen(apart, tuple(events)), now_s)
    return found


@pytest.mark.slow
@given(looks)
@settings(max_examples=60, deadline=None)
def test_an_incident_never_shrinks_and_two_of_a_kind_never_overlap(
    looked: list[tuple[float, list[Sight], list[Sight]]],
) -> None:
    newest: dict[tuple[str, str, str], Finding] = {}
    for each in reported(Findings("disk", PERIOD_S), looked):
        before = newest.get(each.key)
        if before is not None and before.first_s == each.first_s:
            assert (each.count, each.last_s) >= (before.count, before.last_s)
        elif before is not None:
            assert each.first_s > before.last_s
        assert each.first_s <= each.last_s
        newest[each.key] = each


@pytest.mark.slow
@given(looks)
@settings(max_examples=60, deadline=None)
def test_no_event_is_ever_lost_or_counted_twice(looked: list[tuple[float, list[Sight], list[Sight]]]) -> None:
    counts = {
        (*each.key, each.first_s): each.count for each in reported(Findings("disk", PERIOD_S), looked)
        if each.check == "disk"
    }  # fmt: skip
    assert sum(counts.values()) == sum(event.times for _, _, events in looked for event in events)


@given(st.lists(st.floats(1.0, 70.0), min_size=3, max_size=60))
def test_lasting_state_is_never_two_incidents(pauses: list[float]) -> None:
    state = Sight("disk", "a", "full")
    found = reported(Findings("disk", PERIOD_S), [(pause_s, [state], []) for pause_s in pauses])
    assert len({each.first_s for each in found}) == 1


def test_a_clock_that_is_set_back_does_not_turn_times_around() -> None:
    findings, state = Findings("disk", PERIOD_S), Sight("disk", "a", "full")
    times = (1000.0, 970.0, 1060.0, 1120.0, 1180.0, 1240.0, 40.0, 70.0)
    found = [each for now_s in times for each in findings.take(Seen((state,)), now_s)]
    assert [(each.first_s, each.last_s) for each in found] == [(1000.0, 1000.0), (1000.0, 1240.0), (40.0, 40.0)]


def test_texts_of_a_sick_device_stay_one_short_line() -> None:
    state = Sight("disk", "a\n\x00" * 100, "full", "b\r\n\x1b" * 100)
    (found,) = Findings("disk", PERIOD_S).take(Seen((state,)), 1000.0)
    assert (len(found.component), len(found.message)) == (COMPONENT_MAX, MESSAGE_MAX)
    assert found.component.isprintable()
    assert found.message.isprintable()
