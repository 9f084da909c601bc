"""The record: bounded, nothing merged, nothing said twice after a restart, and a noisy disk hides no GPU."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.record import HELD_MAX, KEEP_S, Record
from muster.api.node_health import FINDINGS_MAX, NodeHealth, NodeHealthStatus
from muster.fleet.health.finding import Finding
from muster.fleet.health.record import finding_of, observed
from muster.kube.objects.struct import decode, encode

NOW_S = 1_790_000_000.0


def finding(**changes: Any) -> Finding:
    reported = {"check": "xid", "component": "0000:3b:00.0", "code": "79", "first_s": NOW_S, "last_s": NOW_S, **changes}
    return Finding(**{"message": "GPU has fallen off the bus", **reported})


def shown(record: Record, now_s: float = NOW_S) -> list[Finding]:
    return [finding_of(each) for each in record.shown(now_s)[0]]


def after_restart(record: Record) -> Record:
    findings, dropped = record.shown(NOW_S)
    health = decode(encode(NodeHealth(status=NodeHealthStatus(findings=findings, dropped=dropped))), NodeHealth)
    return Record(health.status.findings, health.status.dropped)


def test_an_incident_that_grows_takes_its_own_place() -> None:
    record = Record()
    assert record.add([finding()]) == (True, False)
    assert record.add([finding(count=3, last_s=NOW_S + 2)]) == (False, True)
    assert record.add([finding(count=3, last_s=NOW_S + 2)]) == (False, False)
    assert [(each.count, each.last_s) for each in shown(record)] == [(3, NOW_S + 2)]


@given(st.lists(st.tuples(st.sampled_from(["79", "31"]), st.integers(0, 20)), unique=True, max_size=40))
def test_incidents_are_never_merged(incidents: list[tuple[str, int]]) -> None:
    record = Record()
    for code, number in incidents:
        record.add([finding(code=code, first_s=NOW_S + 61 * number, last_s=NOW_S + 61 * number)])
    assert {(each.code, each.first_s) for each in shown(record, NOW_S + 2000)} == {
        (code, NOW_S + 61 * number) for code, number in incidents
    }


def test_the_newest_are_kept_and_the_others_counted() -> None:
    record = Record()
    for number in range(FINDINGS_MAX + 10):
        record.add([finding(code=str(number), first_s=NOW_S + number, last_s=NOW_S + number)])
    findings, dropped = record.shown(NOW_S)
    assert (len(findings), dropped) == (FINDINGS_MAX, 10)
    assert [each.code for each in findings] == [str(number) for number in range(10, FINDINGS_MAX + 10)]


def test_a_noisy_disk_never_hides_a_gpu_that_fell_off_the_bus() -> None:
    record = Record()
    record.add([finding()])
    for number in range(500):
        record.add([finding(check="disk", code=f"io/{number}", first_s=NOW_S + number, last_s=NOW_S + number)])
    assert "79" in {each.code for each in shown(record)}
    assert record.shown(NOW_S)[1] == 501 - FINDINGS_MAX


def test_a_flood_of_different_findings_is_bounded_and_all_are_counted() -> None:
    record = Record()
    record.add([finding(code=str(number), last_s=NOW_S + number) for number in range(4 * HELD_MAX)])
    assert len(record) == HELD_MAX
    findings, dropped = record.shown(NOW_S)
    assert len(findings) + dropped == 4 * HELD_MAX


def test_old_findings_are_dropped_silently() -> None:
    record = Record()
    record.add([finding()])
    assert record.shown(NOW_S + KEEP_S + 1) == ((), 0)


def test_a_clock_that_is_wrong_for_a_while_makes_nothing_forgotten_for_good() -> None:
    record = made_of(finding())
    assert shown(record, NOW_S + 2 * KEEP_S) == []
    assert [each.code for each in shown(record)] == ["79"]


def test_a_log_that_is_read_again_after_a_restart_repeats_nothing() -> None:
    record = Record()
    record.add([finding(count=7, last_s=NOW_S + 30)])
    again = after_restart(record)
    assert again.add([finding(first_s=NOW_S + 0.25, last_s=NOW_S + 30.25, count=7)]) == (False, True)
    assert [(each.first_s, each.count) for each in shown(again)] == [(NOW_S, 7)]
    assert again.add([finding(first_s=NOW_S + 0.25, last_s=NOW_S + 40, count=9)]) == (False, True)
    assert [(each.first_s, each.count) for each in shown(again)] == [(NOW_S, 9)]


def test_a_single_line_that_is_read_again_with_its_clock_adjusted_is_not_counted_twice() -> None:
    again = after_restart(made_of(finding()))
    assert again.add([finding(first_s=NOW_S + 0.01, last_s=NOW_S + 0.01)]) == (False, True)
    assert [(each.first_s, each.count) for each in shown(again)] == [(NOW_S, 1)]


def test_incident_that_spans_a_restart_stays_the_same_incident() -> None:
    record = Record()
    record.add([finding(check="throttle", code="thermal", count=4, last_s=NOW_S + 40)])
    again = after_restart(record)
    sampled = finding(check="throttle", code="thermal", first_s=NOW_S + 60, last_s=NOW_S + 80, count=3)
    assert again.add([sampled]) == (False, True)
    assert [(each.first_s, each.count) for each in shown(again)] == [(NOW_S, 7)]


def test_finding_after_a_restart_and_a_pause_is_another_incident() -> None:
    again = after_restart(made_of(finding(last_s=NOW_S + 5)))
    assert again.add([finding(first_s=NOW_S + 120, last_s=NOW_S + 120)]) == (True, False)
    assert len(shown(again)) == 2


def test_a_restart_forgets_neither_findings_nor_how_many_were_dropped() -> None:
    record = Record()
    for number in range(FINDINGS_MAX + 5):
        record.add([finding(code=str(number), first_s=NOW_S + number, last_s=NOW_S + number)])
    again = after_restart(record)
    assert again.shown(NOW_S) == record.shown(NOW_S)


def test_a_record_of_another_version_is_understood() -> None:
    status = {
        "nodeUID": "u",
        "temperature": {"new": "field"},
        "findings": [
            {"check": "xid", "code": "79", "firstTime": "2026-11-22T00:00:00Z", "lastTime": "2026-11-22T00:00:00Z",
             "certainty": 0.9},
        ],
    }  # fmt: skip
    read = decode(msgspec.json.encode({"spec": {"later": 1}, "status": status}), NodeHealth).status
    assert (read.node_uid, read.agent_version, read.findings[0].code) == ("u", "", "79")


@given(st.text(max_size=400), st.text(max_size=400), st.integers(-5, 2**70))
def test_every_finding_of_a_check_fits_the_schema(component: str, message: str, count: int) -> None:
    seen = observed(finding(component=component, message=message, count=count))
    assert decode(encode(seen), type(seen)) == seen


def test_unencodable_findings_do_not_block_the_others() -> None:
    seen = observed(finding(check="", code="", component="/mnt/\udcff", message="no such file: \udcff"))
    assert decode(encode(seen), type(seen)) == seen
    assert (seen.check, seen.code, seen.component) == ("unknown", "unknown", "/mnt/?")


def made_of(*findings: Finding) -> Record:
    record = Record()
    record.add(findings)
    return record
