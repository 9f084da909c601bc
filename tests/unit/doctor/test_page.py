"""The page of `muster doctor` in a terminal, and its exit status."""

from __future__ import annotations

import msgspec
import pytest

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity, Unseen
from muster.api.reader import OwnCost
from muster.cli.doctor.page import amount, print_report
from muster.doctor.evidence import NUMBER_OF_NODES
from muster.doctor.examine import Report, ServerFacts, examine
from muster.doctor.registry import RULES
from tests.unit.doctor.conftest import evidence_of

FINDING = Finding(
    id="events-flood",
    severity=Severity.ERROR,
    title="EventSource \x1b[2Jagent floods the API server with Events: 2,000 writes/s, where 30 are usual.",
    who=(Culprit("EventSource", "agent in namespace a", 0.934),),
    evidence=(Measure("writes of Events", 2000.0, "requests/s", "apiserver_request_total"),),
    costs=(Cost("Events kept for an hour", "bytes", 3 * 2**30, 30 * 2**30, Growth.PER_NODE),),
    fix=Fix("Stop the source.", ("kubectl get events -A --sort-by=.lastTimestamp | tail -20",), "a: 1\nb: 2\n"),
)
SERVER = ServerFacts("https://10.0.0.1:6443", 2**30, None, 3.0, 120.5, None)


def report(*findings: Finding, servers: tuple[ServerFacts, ...] = (SERVER,)) -> Report:
    return Report(
        version="v1.36.3",
        nodes=100,
        planned_nodes=1000,
        window_seconds=10.0,
        findings=findings,
        unseen=(Unseen("cluster DNS", "forbidden", "list pods in namespace kube-system"),),
        own_cost=OwnCost(30, 4 * 2**20),
        servers=servers,
    )


def test_page_shows_culprit_cost_fix_and_what_was_not_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_report(report(FINDING))
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[0].startswith("ERROR EventSource ")
    assert "  who       EventSource agent in namespace a (93%)" in lines
    assert "  evidence  writes of Events: 2,000 requests/s (apiserver_request_total)" in lines
    assert "  cost      Events kept for an hour: 3 GiB today, 30 GiB at 1,000 nodes" in lines
    assert "            kubectl get events -A --sort-by=.lastTimestamp | tail -20" in lines
    assert "            b: 2" in lines
    assert "  - cluster DNS: forbidden; it needs the right: list pods in namespace kube-system" in lines
    assert "https://10.0.0.1:6443: memory 1 GiB, requests 120/s, in flight 3" in lines


def test_page_does_not_show_an_unknown_number_of_nodes_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    unseen = (Unseen(NUMBER_OF_NODES, "forbidden", "list nodes"),)
    print_report(msgspec.structs.replace(report(), nodes=0, unseen=unseen))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Kubernetes v1.36.3, unknown number of nodes, ")


def test_page_fits_a_narrow_terminal_but_commands_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_report(report(FINDING))
    lines = capsys.readouterr().out.splitlines()
    (command,) = [line for line in lines if "kubectl" in line]
    assert command.endswith("| tail -20")
    assert max(len(line) for line in lines if line != command) <= 60


def test_page_without_metrics_does_not_say_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report(servers=()))
    assert "UNKNOWN No finding, but the metrics could not be read." in capsys.readouterr().out
    print_report(report())
    assert "OK No finding." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1536, "bytes/s", "1.5 KiB/s"),
        (5 * 2**40, "bytes", "5,120 GiB"),
        (0.01234, "s", "0.0123 s"),
        (12345.6, "requests/s", "12,346 requests/s"),
        (12.0, "", "12"),
        (50.0, "%", "50%"),
    ],
)
def test_amounts_are_short(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_report_fails_only_with_an_error_and_shows_errors_first() -> None:
    line = 'apiserver_flowcontrol_rejected_requests_total{flow_schema="a",priority_level="b"} '
    hot = evidence_of((f"{line}0\n", f"{line}9\n"), parts=[])
    done = examine(hot, RULES, OwnCost())
    assert done.failed
    assert [each.id for each in done.findings] == ["requests-rejected"]
    assert not examine(evidence_of(("", "")), RULES, OwnCost()).failed


def test_server_without_metrics_of_a_rule_is_named_as_not_examined() -> None:
    page = 'apiserver_request_total{code="200"} 1\n'
    unseen = {each.what for each in examine(evidence_of((page, page)), RULES, OwnCost()).unseen}
    assert "latency of requests" in unseen
    assert "writes of Events" not in unseen


def test_memory_at_the_planned_size_needs_enough_nodes() -> None:
    page = f"process_resident_memory_bytes {800 * 2**20}\n"
    (few,) = examine(evidence_of((page, page), nodes=5), RULES, OwnCost()).servers
    (many,) = examine(evidence_of((page, page), nodes=100), RULES, OwnCost()).servers
    assert (few.memory_bytes, few.planned_memory_bytes) == (800 * 2**20, None)
    assert many.planned_memory_bytes == (800 + 5.5 * 900) * 2**20
    idle = f"process_resident_memory_bytes {200 * 2**20}\n"
    (empty,) = examine(evidence_of((idle, idle), nodes=100), RULES, OwnCost()).servers
    assert empty.planned_memory_bytes is None
