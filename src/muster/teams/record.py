"""Reads the owner of a node from its label, its taint and the record that Muster writes with them.

If the record does not explain a label (or a taint without a label), it was set by hand, and Muster respects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from muster.api.names import ANNOTATION_TEAM_RECORD, LABEL_TEAM
from muster.kube.objects.node import Taint
from muster.kube.objects.taints import NO_SCHEDULE, NodeChange, TaintId

UNOWNED = ""
"""Owner of nodes that no allocation assigns."""


class TeamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The annotation `muster.dev/team-record`.

    Attributes:
        team: the owner; "" if it was returned to the rest.
        since: when the owner changed.
        why: reason, for display.
        by: name of the writing process.
        key: key of its label and taint.
    """

    team: str
    since: datetime
    why: str = ""
    by: str = ""
    key: str = LABEL_TEAM


class Claim(msgspec.Struct, frozen=True):
    """Ownership of a node.

    Attributes:
        owner: the team, or UNOWNED.
        by_hand: set by hand; Muster does not change the node.
        intact: label and taint match the record, by the present key; always true if set by hand.
        record: our record, if it is valid.
    """

    owner: str
    by_hand: bool = False
    intact: bool = True
    record: TeamRecord | None = None


_UNCLAIMED = Claim(UNOWNED)
_decoder = msgspec.json.Decoder(TeamRecord)


def read_record(annotations: Mapping[str, str]) -> TeamRecord | None:
    """Return the record of a node; None if it is missing or unreadable."""
    text = annotations.get(ANNOTATION_TEAM_RECORD)
    if text is None:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None


def claim_of(
    labels: Mapping[str, str], taints: Iterable[Taint], annotations: Mapping[str, str], team_key: str | None
) -> Claim:
    """Return the ownership of a node. Without a `team_key` (no readable configuration), its record's key applies."""
    record = read_record(annotations)
    if team_key is None:
        team_key = record.key if record is not None else LABEL_TEAM
    label = labels.get(team_key)
    taint = next((each for each in taints if each.key == team_key and each.effect == NO_SCHEDULE), None)
    if record is None:
        owner = label or (taint.value if taint is not None else UNOWNED)
        return Claim(owner, by_hand=True) if owner else _UNCLAIMED
    foreign = label if label is not None and label != record.team else None
    if foreign is None and record.key != team_key and labels.get(record.key, record.team) != record.team:
        foreign = labels[record.key]
    if foreign is None and not record.team and label is None and taint is not None:
        foreign = taint.value
    if foreign:
        return Claim(foreign, by_hand=True)
    if record.team:
        intact = label == record.team and taint is not None and taint.value == record.team
    else:
        intact = label is None and taint is None
    return Claim(record.team, intact=intact and record.key == team_key, record=record)


def change_of(record: TeamRecord, former_key: str = "") -> NodeChange:
    """Return the change that makes a node match this record; removes label and taint of the former key."""
    label: str | None = record.team or None
    taint = Taint(key=record.key, value=record.team, effect=NO_SCHEDULE)
    labels = {record.key: label}
    drop: tuple[TaintId, ...] = () if record.team else ((record.key, NO_SCHEDULE),)
    if former_key and former_key != record.key:
        labels[former_key] = None
        drop += ((former_key, NO_SCHEDULE),)
    return NodeChange(
        put=(taint,) if record.team else (),
        drop=drop,
        labels=labels,
        annotations={ANNOTATION_TEAM_RECORD: msgspec.json.encode(record).decode()},
    )
