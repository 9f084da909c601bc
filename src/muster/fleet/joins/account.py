"""Explains how a node joins: why it is not open to pods yet, when it will be, or when it was opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from muster.api.words import counted
from muster.fleet.joins.record import PaceRecord, record_of, view_of
from muster.kube.clock import instant
from muster.kube.objects.node import Node


class JoinAccount(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of a node's join. Times are in RFC 3339 format.

    Attributes:
        state: Joining while it is held back, Joined after it was opened.
        since: when it began to wait.
        opened: when it was opened; "" while it waits.
        why: what it waits for, or the pace at which it was opened.
        ahead: Ready nodes that are opened before it; None if it is not Ready itself, or was opened.
        opens_in_seconds: the estimated time until it is opened; None if not known.
        pace: the current pace; None if it was opened or the pace is not known.
    """

    state: Literal["Joining", "Joined"]
    since: str
    opened: str = ""
    why: str = ""
    ahead: int | None = None
    opens_in_seconds: float | None = None
    pace: PaceRecord | None = None


def account_of(node: Node, nodes: Iterable[Node], pace: PaceRecord | None) -> JoinAccount | None:
    """Return how the node joins; None if it was never held back.

    Args:
        node: the node.
        nodes: all nodes of the cluster.
        pace: from the ConfigMap muster-joins.
    """
    record, view = record_of(node), view_of(node)
    if not view.held:
        if record is None or not record.opened:
            return None
        return JoinAccount("Joined", record.since, record.opened, record.why)
    since = record.since if record is not None and not record.opened else instant(view.created_at)
    if not view.ready:
        why = "it is not Ready yet, and only nodes that are Ready are opened to pods"
        return JoinAccount("Joining", since, why=why, pace=pace)
    others = (view_of(each) for each in nodes if each.name != node.name)
    ahead = sum(each.held and each.ready and each.turn < view.turn for each in others)
    opens_in_s = (ahead // max(1, pace.nodes) + 1) * pace.period_seconds if pace is not None else None
    why = (
        f"{counted(ahead, 'node')} that came before {'is' if ahead == 1 else 'are'} opened first"
        if ahead
        else "it is next"
    )
    return JoinAccount("Joining", since, why=why, ahead=ahead, opens_in_seconds=opens_in_s, pace=pace)


def lines(account: JoinAccount) -> Iterator[str]:
    """Yield lines for a terminal."""
    if account.state == "Joined":
        yield f"joined: waited since {account.since}, opened to pods {account.opened}"
        yield f"pace then: {account.why}"
        return
    soon = f"; open to pods in about {account.opens_in_seconds:g} s" if account.opens_in_seconds is not None else ""
    yield f"joining: held back since {account.since}: {account.why}{soon}"
    pace = account.pace
    if pace is None:
        yield "pace: unknown; are joins switched on (fleet.joins.enabled of the chart)?"
        return
    yield f"pace: {counted(pace.nodes, 'node')} in {pace.period_seconds:g} s, {pace.waiting} wait; {pace.why}"
    if pace.coming_max >= 0:
        yield f"autoscalers may have {counted(pace.coming_max, 'node')} on the way at once"
