"""Bytes of a kernel log in, findings out: every documented form, in every format, however the bytes were cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import LogClock
from muster.fleet.health.kernellog import INCIDENT_S_MAX, OPEN_MAX, PAUSE_S, Scanner
from muster.fleet.health.policytext import default_policy

XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
GPU = "0000:3b:00.0"


def scan(pieces: Iterable[bytes], clock: LogClock | None = None) -> list[Finding]:
    scanner = Scanner(clock or LogClock())
    for piece in pieces:
        scanner.feed(piece)
    scanner.end()
    return [finding for _, finding in scanner.take()]


def signs(text: bytes) -> list[tuple[str, str, str]]:
    return [finding.key for finding in scan([text])]


@pytest.mark.parametrize(
    ("message", "sign"),
    [
        (XID, ("xid", GPU, "79")),
        (b"NVRM: Xid (0000:3b:00): 14, Channel 00000001", ("xid", GPU, "14")),
        (b"NVRM: Xid (PCI:0000:3B:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception", ("xid", GPU, "13")),
        (b"NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7, name=a b, Contained", ("xid", GPU, "94")),
        (b"NVRM: Xid (PCI:0000:3b:00): 63, pid=1896, Row Remapper: New row marked", ("xid", GPU, "63")),
        (b"NVRM: Xid (PCI:0000:3b:00): 79", ("xid", GPU, "79")),
        (
            b"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            ("xid", GPU, "154/gpu-reset"),
        ),
        (
            b"NVRM: Xid (PCI:0000:3b:00): 154, pid=3, name=x, GPU recovery action changed from 0x0 (None) to 0x2 (x)",
            ("xid", GPU, "154/node-reboot"),
        ),
        (b"NVRM: Xid (PCI:0000:3b:00): 154, in unknown words", ("xid", GPU, "154")),
        (
            b"NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 08 (0x00000004 0x00000001 0x0 0x0)",
            ("xid", "0018:01:00.0", "145/nonfatal/RLW_REMAP/0x00000001"),
        ),
        (
            b"NVRM: Xid (PCI:0018:01:00): 149, pid=1, name=x, NETIR_LINK_EVT Fatal   XC0 i0 Link -1 (0x000601c6 0x0)",
            ("xid", "0018:01:00.0", "149/fatal/NETIR_LINK_EVT/0x00000000"),
        ),
        (b"NVRM: Xid (PCI:0018:01:00): 145, in unknown words", ("xid", "0018:01:00.0", "145")),
        (
            b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
            ("sxid", "0000:c1:00.0", "nonfatal/28006"),
        ),
        (
            b"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM",
            ("sxid", "0000:00:00.0", "fatal/20034"),
        ),
        (b"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 1, Severity 5", ("sxid", "0000:00:00.0", "unknown/1")),
        (b"NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", ("nvrm", GPU, "fallen-off-bus")),
        (b"NVRM: API mismatch: the client has the version 550.54.14, but", ("nvrm", "", "api-mismatch")),
        (b"NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x0:1860)", ("nvrm", GPU, "init-failed")),
        (b"mlx5_core 0000:3b:00.0 eth0: Link down", ("nic", GPU, "link-down")),
        (b"mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged", ("nic", GPU, "unplugged")),
        (
            b"mlx5_core 0000:3b:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
            ("nic", GPU, "health-lost"),
        ),
        (
            b"mlx5_core 0000:3b:00.0: wait_func:1150:(pid 9): X(0x2) timeout. Will cause a leak of a command resource",
            ("nic", GPU, "command-timeout"),
        ),
        (b"ice 0000:3b:00.0 ens1f0: NIC Link is Down", ("nic", GPU, "link-down")),
        (b"ice 0000:3b:00.0 ens1f0: tx_timeout: VSI_num: 14, Q 5", ("nic", GPU, "tx-timeout")),
        (b"NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", ("nic", "eth0", "tx-timeout")),
        (
            b"mlx5_core 0000:3b:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms",
            ("nic", GPU, "tx-timeout"),
        ),
        (b"mlx5_core 0000:3b:00.0: mlx5e_tx_timeout on queue 3", ("nic", GPU, "tx-timeout")),
        (b"ice 0000:3b:00.0:Device isn't ready", ("nic", GPU, "unrecoverable")),
        (b"i40e 0000:3b:00.0 ens1: " + b"x" * 90 + b" TX timeout", ("nic", GPU, "tx-timeout")),
        (b"bond0: (slave ens1): link status definitely down, disabling slave", ("nic", "ens1", "link-down")),
        (b"I/O error, dev nvme0n1, sector 2048 op 0x1:(WRITE) flags 0x800", ("disk", "nvme0n1", "io-error")),
        (b"blk_update_request: I/O error, dev sda, sector 123", ("disk", "sda", "io-error")),
        (b"Buffer I/O error on dev dm-0, logical block 0, lost async page write", ("disk", "dm-0", "io-error")),
        (b"critical medium error, dev sdb, sector 5", ("disk", "sdb", "io-error")),
        (b"nvme nvme0: I/O 258 (I/O Cmd) QID 4 timeout, aborting", ("disk", "nvme0", "timeout")),
        (b"nvme nvme1: controller is down; will reset: CSTS=0xffffffff", ("disk", "nvme1", "controller-down")),
        (b"ata3.00: failed command: READ FPDMA QUEUED", ("disk", "ata3", "command-failed")),
        (b"EXT4-fs (sda1): Remounting filesystem read-only", ("filesystem", "sda1", "read-only")),
        (
            b"EXT4-fs error (device dm-3): ext4_find_entry:1455: inode #2: comm ls: reading",
            ("filesystem", "dm-3", "error"),
        ),
        (b"XFS (dm-0): Metadata corruption detected at xfs_agf", ("filesystem", "dm-0", "error")),
        (
            b"XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).",
            ("filesystem", "nvme1n1", "read-only"),
        ),
        (b"BTRFS info (device sda): forced readonly", ("filesystem", "sda", "read-only")),
        (b"Out of memory: Killed process 123 (python) total-vm:1kB", ("memory", "", "oom")),
        (b"Memory cgroup out of memory: Killed process 9 (python)", ("memory", "", "oom-cgroup")),
        (
            b"EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
            ("memory", "MC1", "corrected"),
        ),
        (b"EDAC MC0: 1 UE memory read error on DIMM_A1", ("memory", "MC0", "uncorrected")),
        (b"mce: [Hardware Error]: Machine check events logged", ("cpu", "", "machine-check")),
        (b"{1}[Hardware Error]: event severity: recoverable", ("cpu", "", "firmware-recoverable")),
        (b"INFO: task kworker/u8:1:1234 blocked for more than 120 seconds.", ("kernel", "", "hung-task")),
        (b"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]", ("kernel", "cpu3", "soft-lockup")),
        (b"NMI watchdog: Watchdog detected hard LOCKUP on cpu 7", ("kernel", "cpu7", "hard-lockup")),
        (b"rcu: INFO: rcu_sched self-detected stall on CPU", ("kernel", "", "rcu-stall")),
        (b"Kernel panic - not syncing: Fatal exception", ("kernel", "", "panic")),
        (b"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", ("pcie", GPU, "fatal")),
        (
            b"pcieport 0000:16:02.0: AER: Multiple Corrected error message received from 0000:3b:00.0",
            ("pcie", GPU, "corrected"),
        ),
        (
            b"nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
            ("pcie", GPU, "nonfatal"),
        ),
        (b"pcieport 0000:3b:00.0: DPC: containment event, status:0x1f01", ("pcie", GPU, "contained")),
    ],
)
def test_messages_that_say_something(message: bytes, sign: tuple[str, str, str]) -> None:
    assert signs(b"[   12.345678] " + message + b"\n") == [sign]
    check, _, code = sign
    assert default_policy().entry(check, code)[2] or code.startswith("unknown/"), "the shipped policy knows it"


@pytest.mark.parametrize(
    "line",
    [
        b"11,5,1,-;" + XID,  # a record that a program wrote
        b"Nov 21 22:20:06 node-17 logger: " + XID,
        b"2026-11-21T22:20:06+00:00 node-17 python3[12]: " + XID,
        b"Nov 21 22:20:06 node-17 kernel: [ 1.0] audit: comm=" + XID,
        b"Nov 21 22:20:06 node-17 sudo: kernel: " + XID,
        b"Nov 21 22:20:06 node-17 a kernel: " + XID,
        b"A program of mine says kernel: " + XID,
        b"Nov 21 22:20:06 node-17\x0bkernel: " + XID,
        b"[    1.000000] mlx5_core 0000:3b:00.0 eth0: the word upLink down in another",
        b"user  :notice: [ 1.0] " + XID,
        b" DEVICE=" + XID,
        b"[    1.000000] NVRM: Xid messages are described in a guide",
        b"[    1.000000] NVRM: Xid (PCI:0000:3b:00): abc, pid=1",
        b"[    1.000000] mlx5_core 0000:3b:00.0 eth0: Link up",
        b"[    1.000000] EXT4-fs (dm-3): mounted filesystem with ordered data mode",
        b"\x00\xff\xfe" * 50,
    ],
)
def test_faults_elsewhere_cause_no_finding(line: bytes) -> None:
    assert signs(line + b"\n") == []


NOV_21_S = datetime(2026, 11, 21, 23, 0, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("header", "host", "time_s"),
    [
        (b"[ 4711.250000] ", "", 1_000_004_711.25),
        (b"[ 4711.250000][  T123] ", "", 1_000_004_711.25),
        (b"kern  :err   : [ 4711.250000] ", "", 1_000_004_711.25),
        (b"3,1204,4711250000,-;", "", 1_000_004_711.25),
        (b"3,1204,4711250000,c,caller=T12;", "", 1_000_004_711.25),
        (b"[Sat Nov 21 23:00:05 2026] ", "", NOV_21_S),
        (b"2026-11-21T23:00:05,500000+00:00 ", "", NOV_21_S + 0.5),
        (b"2026-11-22T00:00:05.5+0100 node-1 kernel: [ 4711.2] ", "node-1", NOV_21_S + 0.5),
        (b"Nov 21 23:00:05 node-1 kernel: ", "node-1", NOV_21_S),
        (b"Nov 21 23:00:05.25 node-1 kernel: [ 4711.250000] ", "node-1", NOV_21_S + 0.25),
        (b"Nov 21 23:00:05 node-1 kernel[0]: [ 4711.250000][    C3] ", "node-1", NOV_21_S),
        (b"Nov  1 23:00:05 node-1 kernel: ", "node-1", NOV_21_S - 20 * 86400),
        (b"<3>Nov 21 23:00:05 node-1 kernel[0]: ", "node-1", NOV_21_S),
        (b"Dec 31 23:00:05 node-1 kernel: ", "node-1", datetime(2025, 12, 31, 23, 0, 5, tzinfo=UTC).timestamp()),
        (b"Feb 29 00:00:00 node-1 kernel: ", "node-1", datetime(2024, 2, 29, tzinfo=UTC).timestamp()),
        (b"", "", NOV_21_S + 60),
        (b"[Sat Nov 31 23:00:05 2026] ", "", NOV_21_S + 60),
    ],
)
def test_formats_of_kernel_logs(header: bytes, host: str, time_s: float) -> None:
    scanner = Scanner(LogClock(boot_s=1e9, now_s=NOV_21_S + 60))
    scanner.feed(header + XID + b"\r\n")
    [(said, finding)] = scanner.take()
    assert (said, finding.key) == (host, ("xid", GPU, "79"))
    assert finding.first_s == pytest.approx(time_s, abs=1e-3)


def test_dates_without_a_zone_are_of_the_given_one() -> None:
    clock = LogClock(now_s=NOV_21_S, zone=timezone(timedelta(hours=-5)))
    [finding] = scan([b"Nov 21 18:00:05 n kernel: " + XID + b"\n"], clock)
    assert finding.first_s == NOV_21_S


def test_a_message_of_several_lines_names_its_gpu_once() -> None:
    lines = (
        b"[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        b"               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        b"               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert signs(lines) == [("nvrm", "0000:b3:00.0", "fallen-off-bus")]
    escaped = lines.replace(b"\n               ", b"\\x0a").replace(b"[ 1843.308145] ", b"3,9,1843308145,-;")
    assert signs(escaped) == [("nvrm", "0000:b3:00.0", "fallen-off-bus")]


@pytest.mark.slow
def test_a_flood_is_one_finding() -> None:
    lines = b"".join(
        b"[%12.6f] NVRM: Xid (PCI:0000:3b:00): 31, pid=%d, name=python3, Ch 00000008, MMU Fault\n" % (99 + i / 4000, i)
        for i in range(4000)
    )
    [finding] = scan(lines for _ in range(200))
    assert (finding.key, finding.count) == (("xid", GPU, "31"), 800_000)
    assert (finding.first_s, finding.last_s) == (99.0, pytest.approx(100, abs=1e-3))
    assert finding.message == "NVRM: Xid (PCI:0000:3b:00): 31, pid=0, name=python3, Ch 00000008, MMU Fault"


def test_end_of_a_flood_is_reported_as_exactly_as_its_beginning() -> None:
    flood = b"".join(line_at(10 + number * 1e-4) for number in range(1000))
    after = line_at(11.0, gpu=9) + line_at(300.0, code=48) + line_at(900.0)
    benign = b"[  901.000000] eth0: renamed from veth1\n"
    whole = [flood, flood.replace(b"3b:00", b"3c:00"), benign, benign, flood, after, benign, after]
    assert scan(whole) == scan(line + b"\n" for line in b"".join(whole).splitlines())
    assert sum(finding.count for finding in scan(whole)) == 3006


def line_at(time_s: float, gpu: int = 0x3B, code: int = 79) -> bytes:
    return b"[%12.6f] NVRM: Xid (PCI:0000:%02x:00): %d, pid=1\n" % (time_s, gpu, code)


def test_message_after_a_pause_is_another_incident() -> None:
    times = [10.0, 11.0, 11 + PAUSE_S + 1, 500.0]
    found = scan([b"".join(map(line_at, times))])
    assert [(finding.first_s, finding.count) for finding in found] == [(10.0, 2), (72.0, 1), (500.0, 1)]


def test_many_incidents_that_come_in_one_piece_stay_apart() -> None:
    found = scan([b"".join(line_at(100.0 * number) for number in range(300))])
    assert [(finding.first_s, finding.count) for finding in found] == [(100.0 * number, 1) for number in range(300)]


def test_flood_on_several_hosts_is_reported_for_each() -> None:
    lines = [b"Nov 21 23:00:05.%03d node-%d kernel: " % (number, number % 3) + XID + b"\n" for number in range(900)]
    scanner = Scanner(LogClock(now_s=NOV_21_S))
    scanner.feed(b"".join(lines))
    found = [(host, each.count, each.first_s - NOV_21_S, each.last_s - NOV_21_S) for host, each in scanner.take()]
    assert found == [
        (f"node-{number}", 300, pytest.approx(number / 1000, abs=1e-5), pytest.approx(0.897 + number / 1000, abs=1e-5))
        for number in range(3)
    ]


def test_flood_of_multi_line_messages_is_reported_for_each_gpu() -> None:
    lines = b"".join(
        b"[%12.6f] NVRM: The NVIDIA GPU 0000:%02x:00.0\n    NVRM: fallen off the bus and is not responding\n"
        % (5 + number / 1000, number % 2)
        for number in range(600)
    )
    assert [(finding.component, finding.count) for finding in scan([lines])] == [
        ("0000:00:00.0", 300),
        ("0000:01:00.0", 300),
    ]


def test_continuing_fault_is_reported_again() -> None:
    times = [float(10 * number) for number in range(200)]
    found = scan([b"".join(map(line_at, times))])
    assert [finding.count for finding in found] == [61, 61, 61, 17]
    assert all(finding.last_s - finding.first_s <= INCIDENT_S_MAX for finding in found)


BENIGN = (
    b"[    1.000000] eth0: renamed from veth1\n",
    b"\n",
    b"Nov 21 23:00:05 n sshd[1]: NVRM: Xid (PCI:0000:3b:00): 79, forged\n",
    b"\x00\xf0garbage NVRM: Xid (\n",
    b"[ cut",
)
PLACES = st.tuples(st.integers(0, 3), st.sampled_from([31, 48, 79]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40), PLACES, st.sampled_from([1, 2, 150, 300])), min_size=1, max_size=5),
    st.lists(st.sampled_from(BENIGN), max_size=10),
    st.lists(st.integers(1, 9000), min_size=1, max_size=5),
    st.sampled_from([0.0, 30.0]),
)
def test_how_the_bytes_were_cut_never_changes_what_is_found(
    runs: list[tuple[float, tuple[int, int], int]], benign: list[bytes], cuts: list[int], pause_s: float
) -> None:
    now_s, lines = 0.0, []
    wanted: Counter[tuple[int, int]] = Counter()
    for number, (step_s, (gpu, code), count) in enumerate(runs):
        now_s += step_s + pause_s * number
        lines += [line_at(now_s + index * 1e-4, gpu, code) for index in range(count)] + benign[number : number + 1]
        now_s += count * 1e-4
        wanted[(gpu, code)] += count
    lines = [line if line.endswith(b"\n") else line + b"\n" for line in lines]
    text = b"".join(lines)
    at, pieces = 0, []
    while at < len(text):
        cut = cuts[len(pieces) % len(cuts)]
        pieces.append(text[at : at + cut])
        at += cut
    one_by_one = scan(lines)
    assert scan([text]) == one_by_one
    assert scan(pieces) == one_by_one
    counted: Counter[tuple[int, int]] = Counter()
    for finding in one_by_one:
        counted[(int(finding.component.split(":")[1], 16), int(finding.code))] += finding.count
    assert counted == wanted, "nothing is lost and nothing is counted twice"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_never_ends_it(pieces: list[bytes]) -> None:
    assert [finding for finding in scan([*pieces, b"\n", line_at(5.0)]) if finding.first_s == 5.0]


def test_a_line_without_end_takes_no_room_and_hides_nothing_behind_it() -> None:
    scanner = Scanner(LogClock())
    scanner.feed(line_at(1.0)[:-1])
    for _ in range(200):
        scanner.feed(b"x" * 10_000)
    scanner.feed(b"\n" + line_at(2.0))
    [(_, finding)] = scanner.take()
    assert (finding.count, finding.last_s) == (2, 2.0)
    assert scanner.lines == 2


def test_the_last_line_needs_no_newline() -> None:
    assert [finding.count for finding in scan([line_at(1.0), line_at(2.0)[:-1]])] == [2]


def test_only_new_faults_are_reported_again() -> None:
    scanner = Scanner(LogClock())
    scanner.feed(line_at(1.0) + line_at(1.0, gpu=9))
    assert [finding.count for _, finding in scanner.take()] == [1, 1]
    assert scanner.take() == []
    scanner.feed(line_at(2.0))
    [(_, finding)] = scanner.take()
    assert (finding.component, finding.count, finding.first_s) == (GPU, 2, 1.0)


def test_more_different_faults_than_are_held_are_counted() -> None:
    lines = [b"[ 1.0] I/O error, dev d%d, sector 1\n" % number for number in range(OPEN_MAX + 500)]
    found = scan([b"".join(lines)])
    assert sum(finding.count for finding in found) == len(lines)
    [overflow] = [finding for finding in found if finding.code == "overflow"]
    assert (overflow.check, overflow.count) == ("kernel-log", 500)
