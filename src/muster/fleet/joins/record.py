"""What is written on a node about its joining, and how it is read to people."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from muster.fleet.joins.pace import Pace
from muster.kube.node import Node, Taint

TAINT_JOINING = "muster.dev/joining"
ANNOTATION_JOIN_RECORD = "muster.dev/join-record"
"""On nodes (JSON): since when the node was held back, when and at which pace it was opened."""
ANNOTATION_JOIN_PACE = "muster.dev/join-pace"
"""On the ConfigMap muster-joins (JSON): the pace and why, while nodes wait."""
JOINING = Taint(key=TAINT_JOINING, value="pending", effect="NoSchedule")


class JoinRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written in the same write as the taint; times are RFC 3339.

    Attributes:
        since: when the node began to wait.
        opened: when it was opened to pods; "" while it waits.
        why: the pace at that moment.
    """

    since: str
    opened: str = ""
    why: str = ""


class PaceRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The pace as it is said to people: nodes in so many seconds, why, and how many nodes wait for it."""

    nodes: int
    period_seconds: float
    verdict: str
    why: str
    waiting: int


def instant(seconds: float) -> str:
    """Write a time as Kubernetes does."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_held(node: Node) -> bool:
    """Whether the node has the taint of joining nodes."""
    return any(taint.key == TAINT_JOINING and taint.effect == JOINING.effect for taint in node.spec.taints)


def pace_words(pace: Pace, period_s: float) -> str:
    """Say the pace in a sentence."""
    return f"{pace.allowance} nodes in {period_s:g} s: {pace.why}"


def record_of(node: Node) -> JoinRecord | None:
    """Read a node's record; None where there is none, or not of ours."""
    try:
        return msgspec.json.decode(node.metadata.annotations.get(ANNOTATION_JOIN_RECORD, ""), type=JoinRecord)
    except msgspec.DecodeError:
        return None


def why(node: Node, pace: str = "") -> list[str]:
    """Explain what joining means for the node; nothing where it never was held back.

    Args:
        node: with its annotations.
        pace: annotation ANNOTATION_JOIN_PACE of the ConfigMap, where that is at hand.
    """
    record = record_of(node)
    if not is_held(node):
        if record is None or not record.opened:
            return []
        return [f"joined: waited since {record.since}, opened to pods {record.opened}", f"pace then: {record.why}"]
    since = record.since if record is not None and not record.opened else ""
    made = node.metadata.creation_timestamp
    lines = [f"joining: held back since {since or (instant(made.timestamp()) if made else 'it was made')}"]
    if not node.ready:
        lines.append("it is not Ready yet; only nodes that are Ready are opened to pods")
    try:
        now = msgspec.json.decode(pace, type=PaceRecord)
    except msgspec.DecodeError:
        return [*lines, "nodes are opened to pods at the pace that the API server can take"]
    line = f"pace: {now.nodes} nodes in {now.period_seconds:g} s, {now.waiting} wait; {now.why}"
    return [*lines, line]
