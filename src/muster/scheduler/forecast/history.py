"""The history of ended gangs: its limits, how two versions are merged, and its form in the API object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, astuple, replace

from muster.api.run_history import BYTES_MAX, RUN_SECONDS_MAX, RUNS_MAX, TEXT_MAX, RecordedRun, RunGroup
from muster.kube.objects.struct import encode, from_dict
from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import EndedRun

Runs = Mapping[str, EndedRun]
"""Ended gangs by UID."""

FUTURE_S: Final = 86_400.0
"""An end that is later than now by more than this comes from a wrong clock or an edit, and is not believed."""


def merged(known: Runs, news: Runs) -> Runs:
    """Return the newest runs of both. If both have a UID, the run that ended later counts, else the known one.

    The result does not depend on the order in which runs are added. So a new leader may add all ended gangs again.
    """
    runs = dict(known)
    for uid, run in news.items():
        if uid not in runs or runs[uid].ended_at < run.ended_at:
            runs[uid] = run
    return {uid: runs[uid] for uid in _ordered(runs)[-RUNS_MAX:]} if len(runs) > RUNS_MAX else runs


def _ordered(runs: Runs) -> list[str]:
    return sorted(runs, key=lambda uid: (runs[uid].ended_at, uid))


def rounded(run: EndedRun) -> EndedRun:
    """Return the run as the API object holds it, so that it equals the run that is read back."""
    like = run.likeness
    texts = {name: text[:TEXT_MAX] for name, text in asdict(like).items() if isinstance(text, str)}
    run_s = round(min(max(0.0, run.run_s), RUN_SECONDS_MAX), 1)
    return replace(run, likeness=replace(like, **texts), run_s=run_s, ended_at=float(int(run.ended_at)))


def groups_of(runs: Runs) -> tuple[Runs, tuple[RunGroup, ...]]:
    """Return the form in the API object, and the runs in it: if it would be too large, the oldest runs are left out."""
    ordered = _ordered(runs)
    while True:
        groups = tuple(_grouped(runs, ordered))
        size = len(encode(groups))
        if size <= BYTES_MAX:
            return {uid: runs[uid] for uid in ordered}, groups
        ordered = ordered[max(1, len(ordered) * (size - BYTES_MAX) // size) :]


def _grouped(runs: Runs, ordered: list[str]) -> Iterator[RunGroup]:
    alike: dict[Likeness, list[RecordedRun]] = {}
    for uid in ordered:
        run = runs[uid]
        end = datetime.fromtimestamp(run.ended_at, UTC)
        recorded = RecordedRun(uid=uid, run_seconds=run.run_s, end_time=end, completed=run.completed)
        alike.setdefault(run.likeness, []).append(recorded)
    for like in sorted(alike, key=astuple):
        yield RunGroup(**asdict(like), runs=tuple(alike[like]))


def read_groups(groups: Any, now: float) -> tuple[Runs, int]:
    """Return the runs in the API object's `spec.groups`, and the number of entries that are not readable.

    The object may have been edited by hand, or written by another version.
    """
    runs: dict[str, EndedRun] = {}
    unreadable = 0
    for group in groups if isinstance(groups, list) else [] if groups is None else [groups]:
        entries = group.get("runs") if isinstance(group, dict) else None
        entries = entries if isinstance(entries, list) else []
        try:
            like = _likeness(from_dict({**group, "runs": []}, RunGroup))
        except (msgspec.ValidationError, TypeError):
            unreadable += max(1, len(entries))
            continue
        for entry in entries:
            try:
                run = from_dict(entry, RecordedRun)
            except msgspec.ValidationError:
                unreadable += 1
                continue
            if run.end_time.tzinfo is None or run.end_time.timestamp() > now + FUTURE_S:
                unreadable += 1
                continue
            ended = EndedRun(like, run.run_seconds, run.completed, run.end_time.timestamp())
            if run.uid not in runs or runs[run.uid].ended_at < ended.ended_at:
                runs[run.uid] = ended
    return merged(runs, {}), unreadable


def _likeness(group: RunGroup) -> Likeness:
    return Likeness(**{name: getattr(group, name) for name in Likeness.__struct_fields__})
