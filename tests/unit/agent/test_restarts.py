"""An agent that is killed at any line and reads the log again reports the same as one that was never killed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.agent.record import SAME_START_S, Record
from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import LogClock
from muster.fleet.health.kernellog import Scanner
from muster.fleet.health.record import finding_of

BOOT_S = 1_790_000_000.0
LINES = st.lists(
    st.tuples(st.floats(0.0, 250.0), st.sampled_from(["0000:3b:00", "0000:86:00"]), st.sampled_from([79, 31])),
    min_size=1,
    max_size=60,
)


def log_of(steps: list[tuple[float, str, int]]) -> list[bytes]:
    lines, at_s = [], 10.0
    for wait_s, gpu, code in steps:
        at_s += wait_s
        lines.append(f"4,1,{int(at_s * 1e6)},-;NVRM: Xid (PCI:{gpu}): {code}, pid=1, name=a\n".encode())
    return lines


def reported(lines: list[bytes], reads: int, boot_s: float = BOOT_S) -> list[list[Finding]]:
    """What is reported about the log when it is read in so many parts."""
    scanner = Scanner(LogClock(boot_s=boot_s, now_s=boot_s))
    size = max(1, -(-len(lines) // reads))
    parts = [lines[start : start + size] for start in range(0, len(lines), size)]
    said = []
    for part in parts:
        scanner.feed(b"".join(part))
        said.append([finding for _, finding in scanner.take()])
    return said


def known(record: Record) -> list[tuple[str, str, int]]:
    findings, _ = record.shown(BOOT_S)
    by_time = sorted((finding_of(each) for each in findings), key=lambda each: (round(each.first_s), each.key))
    return [(each.component, each.code, each.count) for each in by_time]


def restarted(lines: list[bytes], reads: int, kills: list[tuple[int, float]]) -> Record:
    """The record of an agent that was killed at these lines. At each start the clock had been adjusted by so much."""
    record, boot_s = Record(), BOOT_S
    for killed_at, adjusted_s in kills:
        for findings in reported(lines[:killed_at], reads, boot_s):
            record.add(findings)
        record = Record(*record.shown(BOOT_S))
        boot_s += adjusted_s
    for findings in reported(lines, reads, boot_s):
        record.add(findings)
    return record


def test_an_incident_that_seems_to_continue_the_one_before_as_the_clock_was_set_back_is_not_forgotten() -> None:
    lines = log_of([(0.0, "0000:3b:00", 79), (0.0, "0000:3b:00", 79), (61.0, "0000:3b:00", 79)])
    record = restarted(lines, 1, [(1, -1.0)])
    assert known(record) == [("0000:3b:00.0", "79", 2), ("0000:3b:00.0", "79", 1)]


@given(LINES, st.integers(1, 5), st.data())
def test_a_restart_never_merges_repeats_or_forgets_an_incident(
    steps: list[tuple[float, str, int]], reads: int, data: st.DataObject
) -> None:
    lines = log_of(steps)
    never = Record()
    for findings in reported(lines, reads):
        never.add(findings)

    killed = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    adjusted = [data.draw(st.floats(-SAME_START_S / 4, SAME_START_S / 4)) for _ in killed]
    record = restarted(lines, reads, list(zip(killed, adjusted, strict=True)))
    assert sum(count for *_, count in known(record)) == len(lines)
    assert sorted(known(record)) == sorted(known(never))
