"""Dry run: which gangs the scheduler would start now with other settings.

It plans on the same snapshot, and writes nothing. The nodes are those of the present cluster. So gangs that run now,
backfilled or not, hold their nodes in both plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from muster.api.scheduling import BackfillPolicy, QueueOrder
from muster.api.words import counted, few
from muster.scheduler.decide import decide
from muster.scheduler.plan import Bind, Plan, Settings, TryEviction, WritePlacement
from muster.scheduler.queue.fair import FairOrder
from muster.scheduler.snapshot import Snapshot
from muster.scheduler.state import ClusterState


class Rules(msgspec.Struct, frozen=True, rename="camel"):
    """The settings that a dry run compares."""

    policy: BackfillPolicy
    pools: Mapping[str, BackfillPolicy]
    order: QueueOrder

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """Return the rules of these settings."""
        return cls(settings.policy, dict(settings.pool_policies), settings.order)

    def text(self) -> str:
        """Return the rules in a few words, such as "policy easy (pool a: strict), order fair"."""
        pools = ", ".join(f"pool {pool}: {policy}" for pool, policy in sorted(self.pools.items()))
        return f"policy {self.policy}{f' ({pools})' if pools else ''}, order {self.order}"


class WouldStart(msgspec.Struct, frozen=True, rename="camel"):
    """A waiting gang that a plan starts.

    Attributes:
        gang: `namespace/name`.
        nodes: the number of its nodes.
        backfilled_for: `namespace/name` of the gang for which these nodes are reserved; "" if they are not.
        after_others: other gangs have to leave the nodes first.
    """

    gang: str
    nodes: int
    backfilled_for: str = ""
    after_others: bool = False

    def text(self) -> str:
        """Return one line."""
        where = f", backfilled on nodes reserved for {self.backfilled_for}" if self.backfilled_for else ""
        return f"{self.gang}: {counted(self.nodes, 'node')}{where}" + ", after other gangs leave" * self.after_others


class DryRun(msgspec.Struct, frozen=True, rename="camel"):
    """What the scheduler would start now with some rules, and with those of the cluster.

    Attributes:
        waiting: the number of gangs that are ready to start and wait for nodes.
        backfilled: gangs that run on reserved nodes now, as `namespace/name`.
    """

    rules: Rules
    cluster_rules: Rules
    starts: tuple[WouldStart, ...]
    cluster_starts: tuple[WouldStart, ...]
    waiting: int
    backfilled: tuple[str, ...] = ()

    @property
    def only_here(self) -> tuple[WouldStart, ...]:
        """The gangs that only the dry run starts."""
        return _without(self.starts, self.cluster_starts)

    @property
    def only_cluster(self) -> tuple[WouldStart, ...]:
        """The gangs that only the rules of the cluster start."""
        return _without(self.cluster_starts, self.starts)

    def of(self, gang: str) -> WouldStart | None:
        """Return what the dry run starts of this gang (`namespace/name`)."""
        return next((each for each in self.starts if each.gang == gang), None)

    def lines(self) -> Iterator[str]:
        """Yield the dry run as text for a terminal."""
        yield f"with {self.rules.text()}: {counted(len(self.starts), 'gang')} of {self.waiting} would start now"
        yield from (f"  {each.text()}" for each in self.starts)
        usual = counted(len(self.cluster_starts), "gang")
        yield f"the cluster has {self.cluster_rules.text()}: {usual} would start now"
        for said, gangs in (("not with the cluster's", self.only_here), ("only with the cluster's", self.only_cluster)):
            if gangs:
                yield f"  {said}: {few(each.gang for each in gangs)}"
        if self.backfilled:
            yield f"  backfilled already, and running in both cases: {few(self.backfilled)}"

    def data(self) -> dict[str, Any]:
        """Return the dry run as JSON-ready data."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        result["onlyHere"] = [each.gang for each in self.only_here]
        result["onlyCluster"] = [each.gang for each in self.only_cluster]
        return result


def dry_run(state: ClusterState, settings: Settings, cluster: Settings, now: float) -> DryRun:
    """Plan with these settings and with those of the cluster. Afterwards the queue has the order of `settings`.

    Args:
        state: the cluster, which this process must own: each plan sorts its queue again.
        settings: settings that are tried out.
        cluster: the settings of the cluster.
        now: seconds since the epoch.
    """
    order = FairOrder()
    state.snapshot(now)
    order.apply_all(state, cluster, now)
    usual = _starts(state.snapshot(now), cluster, now)
    order.apply_all(state, settings, now)
    snapshot = state.snapshot(now)
    return DryRun(
        Rules.of(settings),
        Rules.of(cluster),
        _starts(snapshot, settings, now),
        usual,
        sum(len(queue) for queue in snapshot.queues.values()),
        tuple(sorted(gang.full_name for gang in snapshot.backfilled.values())),
    )


def _starts(snapshot: Snapshot, settings: Settings, now: float) -> tuple[WouldStart, ...]:
    """Return the gangs without nodes that the next plan starts, in order of its actions."""
    plan: Plan = decide(snapshot, now, settings)
    found: dict[str, WouldStart] = {}
    for action in plan.actions:
        key = action.by if isinstance(action, TryEviction) else action.gang
        gang = snapshot.gangs.get(key)
        if gang is None or gang.queued_as is None:
            continue
        if isinstance(action, WritePlacement):
            spec = action.placement.spec
            nodes = len({slot.node for slot in spec.slots})
            reserved_for = spec.backfill.gang if spec.backfill is not None else ""
            found[key] = WouldStart(gang.full_name, nodes, reserved_for, spec.preempting)
        elif isinstance(action, Bind):
            found[key] = WouldStart(gang.full_name, 1, action.backfilled_for)
        elif isinstance(action, TryEviction):
            found.setdefault(key, WouldStart(gang.full_name, len(gang.pending), after_others=True))
    return tuple(found.values())


def _without(starts: tuple[WouldStart, ...], others: tuple[WouldStart, ...]) -> tuple[WouldStart, ...]:
    names = {each.gang for each in others}
    return tuple(each for each in starts if each.gang not in names)
