"""The estimate of headers that counters of IP packets do not see."""

from __future__ import annotations

from muster.network.traffic.overhead import overhead_bytes


def test_every_packet_on_the_wire_has_a_link_header_and_further_ones_have_their_own_headers() -> None:
    """One packet of 64 KiB that the NIC sends as 45."""
    assert overhead_bytes(1, 45) == 45 * 14 + 44 * 52
    assert overhead_bytes(1, 45, 1.0) == 45 * 14 + 44 * 72
    assert overhead_bytes(1, 45, 0.5, link_header_bytes=18) == 45 * 18 + 44 * 62


def test_nic_that_counted_fewer_packets_than_the_rows_adds_no_headers() -> None:
    """Its counters were read a moment before."""
    assert overhead_bytes(10, 8) == 8 * 14
