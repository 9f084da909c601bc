"""/dev/kmsg: what the kernel overwrote before it was read is itself a finding, and no record comes twice."""

from __future__ import annotations

import errno

import pytest

from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import LogClock
from muster.fleet.health.kernellog import Scanner
from muster.fleet.health.kmsg import KMSG, Kmsg
from tests.support.kmsgdevice import PATH, Device, record


def read(kmsg: Kmsg) -> tuple[list[bytes], list[tuple[str, int]]]:
    data, findings = b"", []
    for piece in kmsg.read(now_s=5.0):
        if isinstance(piece, Finding):
            findings.append((piece.code, piece.count))
        else:
            data += piece
    return [line for line in data.split(b"\n") if line and line[:1] != b" "], findings


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line.split(b",")[1]) for line in lines]


def test_it_begins_with_the_oldest_record_and_never_waits() -> None:
    kmsg = Kmsg(PATH, Device(record(7), record(8)).operations())
    lines, findings = read(kmsg)
    assert (numbers(lines), findings) == ([7, 8], [])
    assert read(kmsg) == ([], [])


def test_an_overrun_is_a_finding_that_counts_what_was_lost() -> None:
    kmsg = Kmsg(PATH, Device(record(7), errno.EPIPE, record(1000), record(1001)).operations())
    lines, findings = read(kmsg)
    assert numbers(lines) == [7, 1000, 1001]
    assert findings == [("overrun", 992)]


def test_a_gap_in_the_numbers_is_an_overrun_too() -> None:
    device = Device(record(7), record(9))
    kmsg = Kmsg(PATH, device.operations())
    assert read(kmsg)[1] == [("overrun", 1)]
    device.reads = [record(12)]
    assert read(kmsg)[1] == [("overrun", 2)]


def test_overrun_at_the_end_is_reported_at_once() -> None:
    assert read(Kmsg(PATH, Device(errno.EPIPE).operations())) == ([], [("overrun", 1)])


def test_interrupted_reads_are_repeated() -> None:
    assert numbers(read(Kmsg(PATH, Device(errno.EINTR, record(1)).operations()))[0]) == [1]


def test_a_broken_device_is_opened_again_and_nothing_comes_twice() -> None:
    device = Device(record(7), errno.EIO)
    kmsg = Kmsg(PATH, device.operations())
    lines, findings = read(kmsg)
    assert (numbers(lines), findings, device.open) == ([7], [("unreadable", 1)], 0)
    device.reads = [record(6), record(7), record(8)]
    lines, findings = read(kmsg)
    assert (numbers(lines), findings) == ([8], [])


@pytest.mark.parametrize(
    ("error", "code"), [(errno.EPERM, "permission"), (errno.EACCES, "permission"), (errno.ENOENT, "missing")]
)
def test_without_the_device_there_is_a_finding_once_and_no_crash(error: int, code: str) -> None:
    device = Device(record(1))
    device.refuses = error
    kmsg = Kmsg(PATH, device.operations())
    assert read(kmsg) == ([], [(code, 1)])
    assert read(kmsg) == ([], [])
    device.refuses = 0
    assert numbers(read(kmsg)[0]) == [1]


def test_the_real_device_is_read_from_its_oldest_record() -> None:
    kmsg = Kmsg()
    scanner = Scanner(LogClock(boot_s=1e9))
    count, codes = 0, []
    for piece in kmsg.read(now_s=2e9):
        if isinstance(piece, Finding):
            codes.append(piece.code)
        else:
            count += len(piece.split(b"\n"))
            scanner.feed(piece)
    kmsg.close()
    if codes in (["permission"], ["missing"]):
        pytest.skip(f"{KMSG}: {codes[0]}")
    assert "unreadable" not in codes
    assert 0 < scanner.lines <= count
