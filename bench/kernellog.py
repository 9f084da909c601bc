"""How fast a kernel log is read: lines a second, quiet, with faults, and in a flood, and that nothing is lost.

The peer in the same run is the loop one would write: the same patterns, line by line. Both have to find exactly the
faults that were put in.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Report, at_least, at_most, emit, spread
from muster.fleet.health.headers import HEADER, LogClock
from muster.fleet.health.kernellog import Scanner
from muster.fleet.health.patterns import BEGINNING, Sign, sign_of

READ_BYTES = 1 << 18
WANTED_PER_S = 1_500_000

USUAL = (
    b"eth0: renamed from veth1a2b3c4",
    b"IPv6: ADDRCONF(NETDEV_CHANGE): cali1234abcd: link becomes ready",
    b"docker0: port 2(veth1a2b3c) entered forwarding state",
    b'audit: type=1400 audit(1700000000.123:456): apparmor="STATUS" operation="profile_load" name="cri" pid=411',
    b"perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    b"nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    b"TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.",
    b"EXT4-fs (dm-3): mounted filesystem with ordered data mode. Quota mode: none.",
    b"mlx5_core 0000:5e:00.0 eth1: Link up",
    b"usb 1-1: new high-speed USB device number 2 using xhci_hcd",
)
FAULTS = (
    b"NVRM: Xid (PCI:0000:%02x:00): 31, pid=%d, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    b"NVRM: Xid (PCI:0000:%02x:00): 63, pid=%d, Row Remapper: New row marked for remapping, reset gpu to activate.",
    b"mlx5_core 0000:%02x:00.0 eth%d: Link down",
    b"nvidia 0000:%02x:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID) %d",
)


class Log(NamedTuple):
    """A log as bytes, its lines, and how many of them are faults."""

    text: bytes
    lines: int
    faults: int


def kmsg(number: int, message: bytes) -> bytes:
    return b"6,%d,%d,-;%s\n" % (number, number * 20, message)


def dmesg(number: int, message: bytes) -> bytes:
    return b"[%12.6f] %s\n" % (number * 2e-5, message)


def syslog(number: int, message: bytes) -> bytes:
    second = number // 50_000
    return b"Nov 21 23:%02d:%02d node-17 kernel: [%12.6f] %s\n" % (second // 60, second % 60, number * 2e-5, message)


def made(lines: int, one_in: int, line: Callable[[int, bytes], bytes]) -> Log:
    """A log in which one line in so many is a fault; 0: none, 1: all of them one Xid, as in a flood."""
    choose = random.Random(7)
    out, faults = [], 0
    for number in range(lines):
        if one_in and number % one_in == 0:
            faults += 1
            pattern = FAULTS[0] if one_in == 1 else choose.choice(FAULTS)
            out.append(
                line(number, pattern % (0x18 if one_in == 1 else choose.randrange(8), choose.randrange(100_000)))
            )
        else:
            out.append(line(number, choose.choice(USUAL)))
    return Log(b"".join(out), lines, faults)


def scanned(log: Log) -> int:
    """Read the log as it comes from a file; how many faults were found."""
    scanner = Scanner(LogClock(now_s=time.time()))
    for start in range(0, len(log.text), READ_BYTES):
        scanner.feed(log.text[start : start + READ_BYTES])
    scanner.end()
    if scanner.lines != log.lines:
        raise SystemExit(f"{log.lines - scanner.lines} lines were lost")
    return sum(finding.count for _, finding in scanner.take())


LINE = re.compile(HEADER + b"(" + BEGINNING + b")")


def looped(log: Log) -> int:
    """The peer: line by line; it only counts, while the scanner also finds incidents, times and messages."""
    found: dict[Sign, int] = {}
    for line in log.text.split(b"\n"):
        match = LINE.match(line)
        if match is not None:
            sign = sign_of(match[2])
            if sign is not None:
                found[sign] = found.get(sign, 0) + 1
    return sum(found.values())


def measured(log: Log, read: Callable[[Log], int]) -> tuple[float, float, int]:
    """Return (lines a second by the clock, lines a second of CPU, faults that were lost or made up)."""
    cpu_started, started = time.process_time(), time.perf_counter()
    found = read(log)
    cpu_s, wall_s = time.process_time() - cpu_started, time.perf_counter() - started
    return log.lines / wall_s, log.lines / cpu_s, abs(found - log.faults)


def logs(lines: int) -> Iterator[tuple[str, Log]]:
    yield "quiet_dmesg", made(lines, 0, dmesg)
    yield "faults_dmesg", made(lines, 1000, dmesg)
    yield "faults_kmsg", made(lines, 1000, kmsg)
    yield "faults_syslog", made(lines, 1000, syslog)
    yield "flood_kmsg", made(max(lines, 800_000), 1, kmsg)


def run(lines: int, repeat: int) -> tuple[Mapping[str, float], Table]:
    figures: dict[str, float] = {"lines": lines, "lost": 0}
    table = Table("log", "lines/s", "of CPU", "line by line", "ratio", "lost")
    for name, log in logs(lines):
        ours, peer, ratios, lost = [], [], [], 0
        for _ in range(repeat):
            ours.append(measured(log, scanned))
            peer.append(measured(log, looped))
            ratios.append(ours[-1][1] / peer[-1][1])
            lost += ours[-1][2] + peer[-1][2]
        spread(f"{name}_lines_per_s", [wall for wall, _, _ in ours], figures)
        spread(f"{name}_lines_per_cpu_s", [cpu for _, cpu, _ in ours], figures)
        spread(f"{name}_loop_lines_per_s", [wall for wall, _, _ in peer], figures)
        spread(f"{name}_ratio", ratios, figures)
        figures["lost"] += lost
        walls = [statistics.median(column) for column in zip(*ours, strict=True)]
        loop = statistics.median(wall for wall, _, _ in peer)
        table.add_row(
            name, f"{walls[0]:,.0f}", f"{walls[1]:,.0f}", f"{loop:,.0f}", f"{statistics.median(ratios):.1f}", str(lost)
        )
    return figures, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", default="-", metavar="FILE", help="where the report goes beside stdout")
    options = parser.parse_args()
    figures, table = run(options.lines, options.repeat)
    goals = [
        at_least(f"{name}, lines/s", WANTED_PER_S, figures[f"{name}_lines_per_s"])
        for name in ("quiet_dmesg", "faults_dmesg", "faults_kmsg", "faults_syslog", "flood_kmsg")
    ]
    goals.append(at_most("faults lost", 0, figures["lost"]))
    emit(Report("kernellog", figures, goals), options.json, [table])


if __name__ == "__main__":
    main()
