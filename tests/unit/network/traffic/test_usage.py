"""Who uses the uplink now: rates from reports of several nodes, beside what the network cards counted."""

from __future__ import annotations

import pytest

from muster.network.traffic.report import TUNNEL_JOB, Nic, Row, TrafficReport
from muster.network.traffic.usage import usage


def report(node: str, rows: list[Row], previous: list[Row], nic: Nic = Nic(), then: Nic = Nic()) -> TrafficReport:  # noqa: B008
    return TrafficReport(
        node=node,
        node_uid="",
        ledger_id=node,
        taken_s=100.0,
        interval_s=2.0,
        rows=tuple(rows),
        previous=tuple(previous),
        nic=nic,
        nic_previous=then,
    )


def test_job_on_two_nodes_is_one_line_and_the_largest_user_is_first() -> None:
    one = report(
        "a",
        [Row("ns", "train", "t", "internet", "in", 3000, 3), Row("ns", "web", "", "internet", "out", 900, 1)],
        [Row("ns", "train", "t", "internet", "in", 1000, 1)],
    )
    two = report(
        "b",
        [Row("ns", "train", "t", "object-store", "in", 500, 1), Row("ns", "train", "t", "internal", "out", 8000, 9)],
        [],
    )
    found = usage([one, two])
    first, second = found.jobs
    assert (first.job, first.nodes, first.in_bps, first.out_bps) == ("train", 2, (2000 + 500) * 4, 0)
    assert (first.internal_out_bps, first.in_bytes) == (32_000, 3500)
    assert first.classes["object-store"] == {"in": 2000, "out": 0}
    assert (second.job, second.out_bps) == ("web", 3600)


def test_first_reading_after_a_start_has_totals_and_no_rates() -> None:
    rows = (Row("ns", "train", "", "internet", "in", 3000, 3),)
    found = usage([TrafficReport(node="a", node_uid="", ledger_id="a", taken_s=1.0, rows=rows)])
    assert (found.jobs[0].in_bps, found.jobs[0].in_bytes) == (0, 3000)
    assert found.checks["in"].nic_bps == 0
    assert found.checks["in"].difference == 0.0


@pytest.mark.parametrize(("merged", "headers"), [(1, 52), (44, 52)])
def test_rows_and_headers_agree_with_a_card_that_splits_segments(merged: int, headers: int) -> None:
    """The kernel counts one packet of 64 KiB; the card sends 44 with headers of their own."""
    wire_packets, payload = 44_000, 1448
    counted_packets = wire_packets // merged
    counted = wire_packets * payload + counted_packets * headers
    wire = wire_packets * (payload + headers + 14)
    rows = [Row("ns", "train", "", "internet", "in", counted, counted_packets)]
    found = usage([report("a", rows, [], Nic(in_bytes=wire, in_packets=wire_packets))])
    assert found.checks["in"].nic_bps == wire * 4
    assert abs(found.checks["in"].difference) < 0.0001


def test_envelopes_of_an_overlay_count_as_headers_and_not_as_a_job() -> None:
    rows = [
        Row("ns", "train", "", "internal", "in", 100_000, 100),
        Row("", TUNNEL_JOB, "", "inner", "in", 100_000, 100),
        Row("", TUNNEL_JOB, "", "outer", "in", 105_000, 100),
    ]
    wire = 105_000 + 100 * 14
    found = usage([report("a", rows, [], Nic(in_bytes=wire, in_packets=100))])
    assert [each.job for each in found.jobs] == ["train"]
    assert found.checks["in"].difference == 0.0
