"""Programs that classify packets: every packet gets what the longest prefix says."""

from __future__ import annotations

import ipaddress
import random
import struct

import pytest

from muster.network.shaping import program
from muster.network.shaping.program import TooManyPrefixes

N = ipaddress.ip_network
ALL = 0xFFFFFFFF


def run(code: bytes, packet: bytes, protocol: int) -> int:
    """A machine for classic BPF (linux/filter.h), for the instructions that the kernel documents."""
    at, a, x = 0, 0, 0

    def load(offset: int, size: int) -> int:
        assert offset + size <= len(packet)
        return int.from_bytes(packet[offset : offset + size], "big")

    while True:
        opcode, true, false, k = struct.unpack_from("=HBBI", code, at * 8)
        at += 1
        if opcode == 0x06:
            return k
        if opcode == 0x20 and k == 0xFFFFF000:
            a = protocol
        elif opcode in (0x20, 0x28, 0x30):
            a = load(k - 0xFFF00000, {0x20: 4, 0x28: 2, 0x30: 1}[opcode])
        elif opcode == 0x48:
            a = load(x + k - 0xFFF00000, 2)
        elif opcode == 0xB1:
            x = 4 * (packet[k - 0xFFF00000] & 0xF)
        elif opcode == 0x05:
            at += k
        else:
            holds = {0x15: a == k, 0x35: a >= k, 0x45: bool(a & k)}[opcode]
            at += true if holds else false


def packet(
    source: str,
    destination: str,
    *,
    transport: int = 6,
    ports: tuple[int, int] = (40000, 443),
    options: int = 0,
    fragment: int = 0,
) -> tuple[bytes, int]:
    tail = struct.pack("!HHI", *ports, 0)
    near, far = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    if near.version == 6:
        return struct.pack("!IHBB", 6 << 28, len(tail), transport, 64) + near.packed + far.packed + tail, 0x86DD
    head = struct.pack("!BBHHHBBH", 0x45 + options, 0, 28, 0, fragment, 64, transport, 0)
    return head + near.packed + far.packed + bytes(4 * options) + tail, 0x0800


def expected(classes: dict[program.Network, bool], address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    holding = [net for net in classes if net.version == parsed.version and parsed in net]
    return classes[max(holding, key=lambda net: net.prefixlen)] if holding else True


@pytest.mark.slow
def test_longest_prefix_decides_for_random_tables_of_both_families() -> None:
    rng = random.Random(5)
    for _ in range(40):
        classes: dict[program.Network, bool] = {}
        probes = []
        for _ in range(rng.randrange(0, 40)):
            start = ipaddress.ip_address(rng.choice(("10.0.0.0", "10.1.0.0", "52.0.0.0", "fd00::", "2001:db8::")))
            bits = start.max_prefixlen
            value = int(start) | rng.getrandbits(bits) & rng.choice((0xFFFF, (1 << bits - 8) - 1))
            net = N(f"{type(start)(value)}/{rng.randrange(0, bits + 1)}", strict=False)
            classes[net] = rng.random() < 0.5
            first, last = net[0], net[-1]
            probes += [first, last]
            probes += [first - 1] if int(first) else []
            probes += [last + 1] if int(last) + 1 < 1 << bits else []
        for upload in (False, True):
            code = program.budgeted(classes, upload=upload)
            for probe in probes:
                pod = "10.1.0.1" if probe.version == 4 else "fd00::1"
                data = packet(pod, str(probe)) if upload else packet(str(probe), pod)
                assert bool(run(code, *data)) == expected(classes, str(probe)), (probe, classes)


def test_packets_that_are_not_ip_are_untouched() -> None:
    assert run(program.budgeted({}, upload=True), bytes(40), 0x0806) == 0


def test_jumps_longer_than_a_byte_reach_their_target() -> None:
    classes: dict[program.Network, bool] = {N(f"52.{each}.0.0/24"): False for each in range(256)}
    code = program.budgeted(classes, upload=True)
    for each in range(256):
        assert run(code, *packet("10.0.0.1", f"52.{each}.0.9")) == 0
        assert run(code, *packet("10.0.0.1", f"52.{each}.1.9")) == ALL


@pytest.mark.slow
def test_more_prefixes_than_the_kernel_takes_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(TooManyPrefixes, match=r"kernel takes 4096; join neighbouring prefixes"):
        program.budgeted({N(f"52.{a}.{b}.0/24"): False for a in range(64) for b in range(0, 256, 8)}, upload=True)


def subjects(*, upload: bool) -> bytes:
    return program.subjects(
        {N("10.1.0.7"): 7, N("fd00::7"): 7, N("10.1.0.8"): 8}, 2, 3, (22, 53), (N("203.0.113.4"),), upload=upload
    )


@pytest.mark.parametrize(
    ("source", "destination", "options", "want"),
    [
        ("10.1.0.7", "8.8.8.8", {}, 7),
        ("fd00::7", "2001:db8::1", {}, 7),
        ("10.1.0.8", "8.8.8.8", {}, 8),
        ("10.1.0.9", "8.8.8.8", {}, 2),
        ("fd00::9", "2001:db8::1", {}, 2),
        ("10.1.0.7", "8.8.8.8", {"ports": (40000, 53), "transport": 17}, 3),
        ("10.1.0.7", "8.8.8.8", {"ports": (22, 50000)}, 3),
        ("fd00::7", "2001:db8::1", {"ports": (40000, 22)}, 3),
        ("10.1.0.7", "8.8.8.8", {"ports": (40000, 53), "options": 3}, 3),
        ("10.1.0.7", "8.8.8.8", {"ports": (40000, 53), "fragment": 100}, 7),
        ("10.1.0.7", "8.8.8.8", {"ports": (22, 53), "transport": 1}, 7),
        ("10.1.0.7", "203.0.113.4", {}, 3),
    ],
)
def test_subject_is_found_in_both_directions(source: str, destination: str, options: dict[str, int], want: int) -> None:
    assert run(subjects(upload=True), *packet(source, destination, **options)) == want  # type: ignore[arg-type]
    back = dict(options)
    if "ports" in back:
        back["ports"] = back["ports"][::-1]  # type: ignore[index]
    assert run(subjects(upload=False), *packet(destination, source, **back)) == want  # type: ignore[arg-type]
