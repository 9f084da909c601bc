"""Whose a node is, read from the node: its label and taint, and the record we leave with them.

A label, or a taint without a label, that our record does not explain was set by hand: it is respected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from muster.api.names import ANNOTATION_TEAM_RECORD, LABEL_TEAM
from muster.kube.node import Taint
from muster.kube.taints import NO_SCHEDULE
from muster.kube.taintwriter import NodeChange, TaintId

NOBODY = ""
"""The owner of nodes that no allocation takes."""


class TeamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The annotation `muster.dev/team-record`.

    Attributes:
        team: whose the node is; "" where it was given back to the rest.
        since: when that came to be.
        why: for people.
        by: which process wrote it.
        key: of the label and taint it was written with.
    """

    team: str
    since: datetime
    why: str = ""
    by: str = ""
    key: str = LABEL_TEAM


class Claim(msgspec.Struct, frozen=True):
    """Whose a node is.

    Attributes:
        owner: the team, or NOBODY.
        by_hand: somebody else said so; the node is not ours to change.
        intact: label and taint say what the record says, by the present key; by hand always.
        record: ours, where there is one that counts.
    """

    owner: str
    by_hand: bool = False
    intact: bool = True
    record: TeamRecord | None = None


_UNCLAIMED = Claim(NOBODY)
_decoder = msgspec.json.Decoder(TeamRecord)


def read_record(annotations: Mapping[str, str]) -> TeamRecord | None:
    """The record of a node; None where there is none, or one that cannot be read."""
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
    """Read a node. Without a `team_key`, as while no configuration can be read, that of its own record counts."""
    record = read_record(annotations)
    if team_key is None:
        team_key = record.key if record is not None else LABEL_TEAM
    label = labels.get(team_key)
    taint = next((each for each in taints if each.key == team_key and each.effect == NO_SCHEDULE), None)
    if record is None:
        owner = label or (taint.value if taint is not None else NOBODY)
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
    """What a node is to be like under this record; label and taint of the key it had before go."""
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
