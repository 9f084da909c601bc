"""Whose fault: a truth table from evidence to user, infrastructure or unknown.

The table is data and is published as docs/whose-fault.md. A fault is charged to one budget of the job:
spec.backoffLimit (user), spec.infrastructureLimit or spec.unknownLimit. One incident leaves many traces: ranks die
because another one did, and the reason may be known only later. So evidence has an order: the row with the lowest tier
decides, and within a tier what happened first. Late evidence re-attributes the fault and gives the charge back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from muster.api.training_job import Cause
from muster.trainingjobs.faulttable import TABLE, UNEXPLAINED, Row

Kind = Literal[
    "hardware", "node", "pod", "waiting", "container", "contact", "rank", "launcher", "start", "stall", "checkpoint"
]

HARDWARE_WINDOW_S: Final = 120.0
"""Hardware evidence this long after a fault still explains it: DCGM and driver logs are read at intervals."""

_REPORT_S: Final = 2.0
"""A supervisor's report is here within this; what takes longer comes from a machine whose clock differs."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One trace of a fault.

    Attributes:
        kind: where it was seen.
        slot: whose slot.
        seen_at: when the controller first saw it, seconds since the epoch.
        node: the node that held the slot.
        reason: Kubernetes' or the supervisor's word for it.
        code: exit code; 128 + signal where a signal ended the process.
        signal: the signal, or 0.
        rank: the rank, or -1.
        message: what people should read.
        time: when it happened by the reporter's own clock; 0 where unknown.
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
    """What decided, by which row."""

    row: Row
    evidence: Evidence

    @property
    def cause(self) -> Cause:
        """Whose budget is charged."""
        return self.row.cause


def matches(row: Row, evidence: Evidence) -> bool:
    """Whether the row speaks of this evidence."""
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
    """The first row that speaks of the evidence."""
    return next((row for row in TABLE if matches(row, evidence)), UNEXPLAINED)


def row_named(rule: str) -> Row:
    """The row with this id; the one for the unexplained where a later version dropped it."""
    return next((row for row in TABLE if row.id == rule), UNEXPLAINED)


def judge(evidence: Iterable[Evidence]) -> Verdict | None:
    """Who is charged for one incident; None without evidence."""
    verdicts = [Verdict(row=row_of(each), evidence=each) for each in evidence]
    return min(verdicts, key=_order, default=None)


def outranks(new: Row, recorded: Row) -> bool:
    """Whether late evidence changes what was recorded: only what decides more strongly does."""
    return new.tier < recorded.tier


def order_at(evidence: Evidence) -> float:
    """The moment that orders traces of one tier: the reporter's own where it can be right, else when it was seen.

    A report waits for a rank's last lines, so what follows from a failure may be heard of before the failure itself.
    """
    return evidence.time if 0 <= evidence.seen_at - evidence.time <= _REPORT_S else evidence.seen_at


def _order(verdict: Verdict) -> tuple[int, float, int]:
    return verdict.row.tier, order_at(verdict.evidence), verdict.evidence.slot


def _signal(evidence: Evidence) -> int:
    if evidence.signal:
        return evidence.signal
    return evidence.code - 128 if 128 < evidence.code <= 128 + 64 else 0
