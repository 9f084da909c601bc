"""Bytes of headers on the wire that counters of IP packets do not see."""

from __future__ import annotations

from typing import Final

ETHERNET_BYTES: Final = 14
"""Destination, source and type; interfaces do not count the checksum."""
SEGMENT_BYTES: Final = 52
"""Headers of IPv4 and TCP with timestamps, which Linux uses by default."""
IPV6_BYTES: Final = 20
"""How much longer the header of IPv6 is than that of IPv4."""


def overhead_bytes(
    packets: int, wire_packets: int, ipv6_share: float = 0.0, *, link_header_bytes: int = ETHERNET_BYTES
) -> int:
    """Return the bytes that the NIC counted besides those of the rows, without envelopes of tunnels.

    A NIC splits a packet of up to 64 KiB into many when it sends, and the kernel merges received ones (segmentation
    and receive offload). Each packet on the wire has a link-layer header. Each packet on the wire that is one more than
    the kernel's stack saw has IP and TCP headers of its own. A NIC that counts unsplit packets reports as many as the
    stack.

    Args:
        packets: of the rows.
        wire_packets: that the NIC counted.
        ipv6_share: of the rows' bytes.
        link_header_bytes: that the NIC counts for each packet.
    """
    split = max(0, wire_packets - packets)
    return wire_packets * link_header_bytes + round(split * (SEGMENT_BYTES + IPV6_BYTES * ipv6_share))
