"""Handles edits of an active job's spec that the API server accepted: ignores them, and reports SpecIgnored."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.api.fixed_spec import Effective
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.snapshot import JobSnapshot, Refusal
from muster.trainingjobs.status import builder

_HELD_S: Final = 3600.0
"""Long pause: the next event is a change of the spec."""


def said(snapshot: JobSnapshot, spec: Effective, now: float) -> list[Action]:
    """Write the condition SpecIgnored, or remove it when the spec is restored."""
    job = snapshot.job
    fields = sorted((*spec.ignored, *spec.lost))
    holds, message = bool(fields), changed_text(spec) if fields else "the spec is the one that the job runs by"
    known = builder.condition_holds(job.status, "SpecIgnored")
    if known == holds and (
        not holds or builder.condition_reason(job.status, "SpecIgnored")[1] == builder.shortened(message)
    ):
        return []
    generation = job.metadata.generation
    reason = "FieldsFixed" if holds else "SpecRestored"
    status = builder.with_condition(job.status, "SpecIgnored", holds, reason, message, now, generation)
    write = WriteStatus(builder.fitted(status), "SpecIgnored" if holds else "SpecRestored")
    return [write, RecordEvent("SpecIgnored", message, warning=True)] if holds else [write]


def held(snapshot: JobSnapshot, spec: Effective, now: float) -> JobSnapshot:
    """Return a snapshot that creates no pods if the values needed for the pods are not known."""
    if not spec.lost:
        return snapshot
    return replace(snapshot, refusal=Refusal("SpecChanged", changed_text(spec), now + _HELD_S))


def changed_text(spec: Effective) -> str:
    """Returns the message of the condition SpecIgnored about changed fields."""
    parts = []
    if spec.ignored:
        parts.append(
            f"the change of {_paths(spec.ignored)} is ignored: the job runs by the spec that it began with. To change "
            "it, set suspend to true, make the change, then set suspend to false"
        )
    if spec.lost:
        parts.append(
            f"{_paths(spec.lost)} changed while the job was active, and its value at the start was too large to keep: "
            "no pod is made until the old value is restored, or the job is suspended and resumed with the new one"
        )
    return "; ".join(parts)


def _paths(fields: tuple[str, ...]) -> str:
    return ", ".join(f"spec.{name}" for name in fields)
