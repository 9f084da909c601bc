"""Reads and writes a session's status: the only memory between two plans and between two controllers.

Every write raises `generation` and requires that the object has not changed. `history` holds what was done: each entry
has an `event` and its facts. Its `reason` is for people, and for versions that have no `event`: they read its first
word (`api/untyped_steps.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from muster.api.names import LABEL_POOL, LABEL_TEAM, QUARANTINE_VALUE, TAINT_QUARANTINE, remediation_name
from muster.api.node_health import ObservedFinding
from muster.api.node_remediation import (
    CAUSES_MAX,
    HISTORY_MAX,
    PASSES_MAX,
    HeldBy,
    NodeRemediation,
    NodeRemediationSpec,
    NodeRemediationStatus,
    RemediationStep,
    RequestedAction,
    Rung,
    StepEvent,
)
from muster.api.preflight import PassedTest
from muster.fleet.health.record import observed
from muster.fleet.remediation.snapshot import Evidence, QuarantineRecord, RemediationNode
from muster.kube.objects.meta import ObjectMeta, is_later
from muster.kube.objects.node import Node, Taint

ANNOTATION_RECORD: Final = "muster.dev/quarantine-record"
"""Annotation of nodes: a `QuarantineRecord` as JSON."""
QUARANTINE: Final = Taint(key=TAINT_QUARANTINE, value=QUARANTINE_VALUE, effect="NoSchedule")

_REASON_MAX: Final = 256
_MESSAGE_MAX: Final = 1024


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """The typed part of a history entry; see `RemediationStep` for the fields."""

    event: str = "Entered"
    fault_key: str = ""
    boot_id: str = ""
    test_level: int | None = None
    tested_at: datetime | None = None
    by: str = ""


ENTERED: Final = Fact()
RELEASED: Final = Fact(event="Released")


def fault_key(evidence: Evidence) -> str:
    """Return CHECK/CODE of the deciding finding; without a finding, the rule, such as `dead`."""
    return evidence.key or evidence.rule


def at(seconds: float) -> datetime:
    """Return a time in the form that objects have."""
    return datetime.fromtimestamp(seconds, UTC)


def new_session(node: RemediationNode, evidence: Evidence) -> NodeRemediation:
    """Return a new session whose status is still to be written."""
    labels = {key: value for key, value in ((LABEL_POOL, node.pool), (LABEL_TEAM, node.team)) if value}
    return NodeRemediation(
        metadata=ObjectMeta(name=remediation_name(node.name, node.uid), labels=labels),
        spec=NodeRemediationSpec(node=node.name, node_uid=node.uid, cause=causes(evidence)),
    )


def causes(evidence: Evidence) -> tuple[ObservedFinding, ...]:
    """Return the evidence's findings in the form that the object has."""
    return tuple(observed(finding) for finding in evidence.findings[-CAUSES_MAX:])


def moved(
    status: NodeRemediationStatus,
    rung: Rung,
    now: float,
    reason: str,
    *,
    fact: Fact = ENTERED,
    deadline_s: float | None = None,
    state: str = "Open",
    message: str = "",
    held_by: HeldBy | None = None,
) -> NodeRemediationStatus:
    """Return the status after entering a rung or a state. Lasting facts (pool, passes) do not change."""
    step = RemediationStep(
        rung=rung,
        time=at(now),
        generation=status.generation + 1,
        reason=shortened(reason, _REASON_MAX),
        **msgspec.structs.asdict(fact),
    )
    return msgspec.structs.replace(
        status,
        state=state,
        rung=rung,
        generation=status.generation + 1,
        since=at(now),
        deadline=at(now + deadline_s) if deadline_s is not None else None,
        history=_bounded((*status.history, step)),
        message=shortened(message or reason, _MESSAGE_MAX),
        held_by=held_by,
    )


def _bounded(steps: tuple[RemediationStep, ...]) -> tuple[RemediationStep, ...]:
    """Return the entries that fit. Of ended episodes, the start of quarantine and the release are kept longest.

    Repeat offenders and breakers are counted from these two entries. A single remediation may have ten entries.
    """
    over, begin = len(steps) - HISTORY_MAX, 0
    kept: list[RemediationStep] = []
    for index, step in enumerate(steps[:-1]):
        if over > 0 and step.event == "Released" and any(each.event == "Released" for each in steps[index + 1 : -1]):
            ended = steps[begin : index + 1]
            went = next((each for each in ended if each.rung == "Quarantine" and each.event != "Released"), None)
            left = [went, step] if went is not None else []
            kept += left
            over, begin = over - (len(ended) - len(left)), index + 1
    return (*kept, *steps[begin:])[-HISTORY_MAX:]


def noted(
    status: NodeRemediationStatus,
    now: float,
    reason: str,
    fact: Fact,
    *,
    deadline_s: float | None = None,
    message: str = "",
) -> NodeRemediationStatus:
    """Return the status with one more history entry on the same rung; `since` does not change."""
    status = moved(
        status,
        status.rung,
        now,
        reason,
        fact=fact,
        deadline_s=deadline_s,
        state=status.state or "Open",
        message=message,
    )
    return msgspec.structs.replace(status, since=status.since)


def said(status: NodeRemediationStatus, message: str, held_by: HeldBy | None) -> NodeRemediationStatus:
    """Return the status with another message, and with the limit that delays the next rung."""
    text = shortened(message, _MESSAGE_MAX)
    return msgspec.structs.replace(status, generation=status.generation + 1, message=text, held_by=held_by)


def unfolded(before: NodeRemediationStatus, after: NodeRemediationStatus) -> Iterator[NodeRemediationStatus]:
    """Yield the status after each history entry since `before`; the last one is `after` itself."""
    for at, step in enumerate(after.history):
        if step.generation <= before.generation:
            continue
        if step is after.history[-1]:
            yield after
        else:
            history = after.history[: at + 1]
            yield msgspec.structs.replace(after, state="Open", rung=step.rung, since=step.time, history=history)


def episode(status: NodeRemediationStatus) -> tuple[RemediationStep, ...]:
    """Return the history since the session was last opened; empty if it is closed."""
    if status.state == "Released":
        return ()
    for index in range(len(status.history) - 1, -1, -1):
        if status.history[index].event == "Released":
            return status.history[index + 1 :]
    return status.history


def last(
    status: NodeRemediationStatus, event: StepEvent | None = None, rung: Rung | None = None
) -> RemediationStep | None:
    """Return the newest entry of the open session with this event and on this rung."""
    for step in reversed(episode(status)):
        if event in (None, step.event) and rung in (None, step.rung):
            return step
    return None


def first_on(status: NodeRemediationStatus, rung: Rung) -> RemediationStep | None:
    """Return the entry that entered the rung; None if the session is not on it."""
    found = None
    for step in reversed(episode(status)):
        if step.rung != rung:
            break
        found = step
    return found


def is_put(session: NodeRemediation, node: RemediationNode) -> bool:
    """Return whether the node has this session's taint although the session does not record it yet.

    The taint is written first, with its own record beside it, so that no new pods come to the node in the meantime.
    """
    mark = node.record
    if mark is None or mark.session != session.name or is_quarantined(session.status):
        return False
    return mark.generation > ended(session.status)


def is_left(session: NodeRemediation, node: RemediationNode) -> bool:
    """Return whether the node still has a taint of this session whose quarantine has ended."""
    mark = node.record
    return mark is not None and mark.session == session.name and mark.generation <= ended(session.status)


def ended(status: NodeRemediationStatus) -> int:
    """Return the generation in which the session was last released; 0 if it never was."""
    return max((step.generation for step in status.history if step.event == "Released"), default=0)


def is_quarantined(status: NodeRemediationStatus) -> bool:
    """Return whether this session has put the node into quarantine."""
    return any(step.rung == "Quarantine" for step in episode(status))


def was_in_use(status: NodeRemediationStatus) -> bool:
    """Return whether the node is in quarantine and was in use before."""
    return any(step.rung == "Quarantine" and step.event != "Joining" for step in episode(status))


def asks(session: NodeRemediation, action: RequestedAction) -> bool:
    """Return whether this is the user's latest request."""
    return session.spec.request is not None and session.spec.request.action == action


def quarantines(session: NodeRemediation) -> list[float]:
    """Return when the node was put into quarantine, as far as the history goes back; joining nodes are not counted."""
    found, out = [], False
    for step in session.status.history:
        if step.event == "Released":
            out = False
        elif step.rung == "Quarantine" and not out:
            out = True
            if step.event != "Joining":
                found.append(step.time.timestamp())
    return found


def released_after(level: int, time_s: float) -> tuple[str, Fact]:
    """Return the text and the fact of a release by a passed test. Versions without typed fields parse the text."""
    ended = at(time_s)
    text = f"released: level {level} passed at {ended.isoformat(timespec='microseconds')}"
    return text, Fact(event="Released", test_level=level, tested_at=ended)


def cleared(step: RemediationStep) -> float:
    """Return until when an entry clears findings: the end of the passed test, or the user's release.

    A finding that was seen after the test counts, even if it is reported late. If no test or user ended the session,
    all findings count.
    """
    if step.event != "Released":
        return 0.0
    if step.tested_at is not None:
        return min(step.tested_at.timestamp(), step.time.timestamp())
    return step.time.timestamp() if step.by else 0.0


def seconds(moment: datetime | None, default: float = 0.0) -> float:
    """Return a time of an object in seconds since the epoch."""
    return moment.timestamp() if moment is not None else default


def record_of(node: Node) -> QuarantineRecord | None:
    """Read our record on the node; None if it is missing or invalid."""
    try:
        return msgspec.json.decode(node.metadata.annotations.get(ANNOTATION_RECORD, ""), type=QuarantineRecord)
    except msgspec.DecodeError:
        return None


def shortened(text: str, most: int) -> str:
    """Shorten a text that is too long for its field."""
    return text if len(text) <= most else text[: most - 3] + "..."


def pool_of(session: NodeRemediation) -> str:
    """Return the pool of a deleted node: the last one written, or the label in sessions of earlier versions."""
    pool = session.status.pool
    return pool if pool is not None else session.metadata.labels.get(LABEL_POOL, "")


def with_pass(status: NodeRemediationStatus, test: PassedTest) -> NodeRemediationStatus:
    """Add a passed test, and drop those that it makes superfluous."""
    left = (each for each in status.passes if each.level > test.level or each.time > test.time)
    return msgspec.structs.replace(status, passes=(*left, test)[-PASSES_MAX:])


def newer(left: NodeRemediation | None, right: NodeRemediation) -> NodeRemediation:
    """Return the later of two versions; if the objects differ, the second one."""
    return left if left is not None and left.uid == right.uid and is_later(left, right) else right
