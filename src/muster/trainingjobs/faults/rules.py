"""Attributes a fault to the user, to infrastructure or to unknown, by a table of evidence.

The table is data and is published as docs/whose-fault.md. A fault is charged to one budget of the job:
spec.backoffLimit (user), spec.infrastructureLimit or spec.unknownLimit. One incident leaves several pieces of evidence:
ranks die because another one did, and the reason may arrive later. So evidence has an order: the row with the lowest
tier decides, and within a tier the earliest. Late evidence re-attributes the fault and refunds the charge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from muster.api.training_job_status import Cause
from muster.trainingjobs.faults.table import TABLE, UNEXPLAINED, Row

Kind = Literal[
    "hardware", "node", "pod", "waiting", "container", "contact", "rank", "launcher", "start", "stall", "checkpoint"
]

HARDWARE_WINDOW_S: Final = 120.0
"""Hardware evidence counts up to this long after a fault, because DCGM and driver logs are read at intervals."""

_REPORT_S: Final = 2.0
"""A supervisor's report arrives within this time. If its time differs by more, the machine's clock is wrong."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence of a fault.

    Attributes:
        kind: where it was seen.
        slot: the slot concerned.
        seen_at: when the controller first saw it, seconds since the epoch.
        node: the node that held the slot.
        reason: the reason that Kubernetes or the supervisor gives.
        code: exit code; 128 + signal if a signal ended the process.
        signal: the signal, or 0.
        rank: the rank, or -1.
        message: text for people.
        time: when it happened by the reporter's own clock; 0 if unknown.
    """

    kind: Kind
    slot: int
    seen_at: float
    node: str = ""
    reason: str = ""
    code: int = 0
    signal: int = 0
    rank: int = -1
    message: str = ""
    time: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence that decided, and its row of the table."""

    row: Row
    evidence: Evidence

    @property
    def cause(self) -> Cause:
        """The cause whose budget is charged."""
        return self.row.cause


def matches(row: Row, evidence: Evidence) -> bool:
    """Returns whether the row applies to this evidence."""
    if row.kind != evidence.kind:
        return False
    if row.reasons and not any(re.fullmatch(pattern, evidence.reason) for pattern in row.reasons):
        return False
    if row.signals and _signal(evidence) not in row.signals:
        return False
    if row.codes and evidence.code not in row.codes:
        return False
    return not row.says or re.search(row.says, evidence.message, re.IGNORECASE) is not None


def row_of(evidence: Evidence) -> Row:
    """The first row that applies to the evidence."""
    return next((row for row in TABLE if matches(row, evidence)), UNEXPLAINED)


def row_named(rule: str) -> Row:
    """The row with this id; the row for unexplained faults if a later version dropped it."""
    return next((row for row in TABLE if row.id == rule), UNEXPLAINED)


def judge(evidence: Iterable[Evidence]) -> Verdict | None:
    """Decides the cause of one incident; None without evidence."""
    verdicts = [Verdict(row=row_of(each), evidence=each) for each in evidence]
    return min(verdicts, key=_order, default=None)


def outranks(new: Row, recorded: Row) -> bool:
    """Returns whether late evidence changes the recorded verdict: only a stronger row does."""
    return new.tier < recorded.tier


def order_at(evidence: Evidence) -> float:
    """The time that orders evidence of one tier: the reporter's own if plausible, else when it was first seen.

    A report waits for a rank's last lines, so a consequence may be reported before the failure itself.
    """
    return evidence.time if 0 <= evidence.seen_at - evidence.time <= _REPORT_S else evidence.seen_at


def _order(verdict: Verdict) -> tuple[int, float, int]:
    return verdict.row.tier, order_at(verdict.evidence), verdict.evidence.slot


def _signal(evidence: Evidence) -> int:
    if evidence.signal:
        return evidence.signal
    return evidence.code - 128 if 128 < evidence.code <= 128 + 64 else 0
