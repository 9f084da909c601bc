"""Replays a recorded kernel log and shows what the policy would have done at each moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from muster.fleet.health.decide import Decision, History, decide
from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import LogClock
from muster.fleet.health.kernellog import Scanner
from muster.fleet.health.nolog import KERNEL_LINE, no_kernel_log
from muster.fleet.health.policy import Policy

NEWEST_MAX: Final = 256
"""The most findings of a node that one decision uses: the newest ones."""


_LOOKED_AT: Final = 1 << 16


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, and the decision after it."""

    finding: Finding
    decision: Decision
    changed: bool
    """Whether the decision differs from the previous one."""


def findings_of(pieces: Iterable[bytes], clock: LogClock) -> tuple[Mapping[str, Sequence[Finding]], int]:
    """Return (findings of each host, oldest first; number of lines). The host is "" if the log does not name it.

    Raises NoKernelLog if nothing was found and no line is a kernel's: such a file is not evidence that the nodes are
    well.
    """
    scanner = Scanner(clock)
    beginning, is_one = b"", False
    incidents: dict[tuple[str, tuple[str, str, str], float], Finding] = {}

    def take() -> None:
        for host, finding in scanner.take():
            incidents[(host, finding.key, finding.first_s)] = finding

    for piece in pieces:
        beginning = beginning or piece[:_LOOKED_AT]
        is_one = is_one or KERNEL_LINE.search(b"\n" + piece) is not None
        scanner.feed(piece)
        take()
    scanner.end()
    take()
    if not (is_one or incidents):
        raise no_kernel_log(beginning)
    hosts: dict[str, list[Finding]] = {}
    for (host, _, _), finding in incidents.items():
        hosts.setdefault(host, []).append(finding)
    for found in hosts.values():
        found.sort(key=lambda finding: (finding.first_s, finding.key))
    return hosts, scanner.lines


def timeline(findings: Sequence[Finding], policy: Policy) -> Iterator[Step]:
    """Yield a step for each finding of one node, oldest first. A finding's whole count applies from its first time."""
    before = Decision()
    for number, finding in enumerate(findings, 1):
        seen = findings[max(0, number - NEWEST_MAX) : number]
        decision = decide(seen, History(), policy, finding.first_s)
        changed = (decision.action, decision.job, decision.rule) != (before.action, before.job, before.rule)
        yield Step(finding=finding, decision=decision, changed=changed)
        before = decision
