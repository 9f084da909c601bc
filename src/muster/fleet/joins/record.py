"""Writes and reads the records of joins on nodes, and the pace in the ConfigMap."""

from __future__ import annotations

import msgspec

from muster.api.names import TAINT_JOINING
from muster.fleet.joins.pace import Pace
from muster.fleet.joins.snapshot import JoiningNode
from muster.fleet.nodes.node import read
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node, Taint

ANNOTATION_JOIN_RECORD = "muster.dev/join-record"
"""Annotation of nodes (JSON): since when the node was held back, when and at which pace it was opened."""
ANNOTATION_JOIN_PACE = "muster.dev/join-pace"
"""Annotation of the ConfigMap muster-joins (JSON): the pace and the reason, while nodes wait."""
JOINING = Taint(key=TAINT_JOINING, value="pending", effect="NoSchedule")


class JoinRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written together with the taint. Times are in RFC 3339 format.

    Attributes:
        since: when the node began to wait.
        opened: when it was opened to pods; "" while it waits.
        why: the pace at that moment.
    """

    since: str
    opened: str = ""
    why: str = ""


class PaceRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The pace in the form shown to users.

    Attributes:
        nodes: how many are opened in each period.
        period_seconds: the length of a period.
        verdict: what the API server can take.
        why: the reason, for people.
        waiting: nodes that wait for their turn, or to become Ready.
        coming_max: nodes that an autoscaler may have on their way at once; -1 if not known.
        cause: the reason, for programs.
    """

    nodes: int
    period_seconds: float
    verdict: str
    why: str
    waiting: int
    coming_max: int = -1
    cause: str = ""


def is_held(node: Node) -> bool:
    """Return whether the node has the taint of joining nodes."""
    return any(taint.key == TAINT_JOINING and taint.effect == JOINING.effect for taint in node.spec.taints)


def view_of(node: Node) -> JoiningNode:
    """Return the node in the form that `decide` uses."""
    recorded = ANNOTATION_JOIN_RECORD in node.metadata.annotations
    return read(JoiningNode, node, held=is_held(node), recorded=recorded)


def pace_of(config: ConfigMap | None) -> PaceRecord | None:
    """Read the pace from the ConfigMap muster-joins; None without one."""
    text = config.metadata.annotations.get(ANNOTATION_JOIN_PACE, "") if config is not None else ""
    try:
        return msgspec.json.decode(text, type=PaceRecord)
    except msgspec.DecodeError:
        return None


def pace_words(pace: Pace, period_s: float) -> str:
    """Format the pace as a sentence."""
    return f"{pace.allowance} nodes in {period_s:g} s: {pace.why}"


def record_of(node: Node) -> JoinRecord | None:
    """Read a node's record; None if it is missing or invalid."""
    try:
        return msgspec.json.decode(node.metadata.annotations.get(ANNOTATION_JOIN_RECORD, ""), type=JoinRecord)
    except msgspec.DecodeError:
        return None
