"""What the hub knows: the nodes of the fleet, their reports and limits, and whose the subjects are.

Events change it: reports and confirmations of agents, and events of nodes and pods. `snapshot` makes the input of
`decide` from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from muster.network.uplink.demand import IDLE_S, is_throttled, wanted
from muster.network.uplink.plan import NodeRates
from muster.network.uplink.settings import Settings
from muster.network.uplink.snapshot import Group, NodeView, Snapshot
from muster.network.uplink.wire import NOTHING, Applied, Pair, PodDemand, Rates, Report

SETTLED_S: Final = 2.5
"""A report may describe the time before a change of limits that is younger than this."""
UNRESPONSIVE_S: Final = 5.0
"""A subject that exceeds its limit for this long does not respond to it."""
SILENT_S: Final = 600.0
"""The last limits of a silent node count this long after its lease. The kubelet restarts a failing container after at
most 5 minutes; then the agent applies their decay.
"""
RESTART_S: Final = 60.0
"""A new leader gives agents that do not run this much more time: until they run, their limits do not decay."""
_GROUPS_MAX: Final = 4096


class Owner(NamedTuple):
    """Whose a pod is, from the controller's own informer: agents only report UIDs."""

    node: str
    namespace: str
    name: str
    job: str
    team: str
    priority: int


class Subject(msgspec.Struct):
    """A subject of a node that has traffic.

    Attributes:
        demand: as reported.
        group: index of its group.
        want: demand in use, for the download and the upload.
        rate: its limit; None while it shares the rest's.
        before: the smaller of its limits before and after the last change: what the report may have measured.
        active_s: when it last had traffic above the floor.
        over_s: since when it has exceeded its limit, in each direction; None if it does not.
    """

    demand: PodDemand
    group: int
    want: Pair
    rate: Pair | None = None
    before: Pair = NOTHING
    active_s: float = 0.0
    over_s: list[float | None] = msgspec.field(default_factory=lambda: [None, None])


class NodeRecord(msgspec.Struct):
    """A node.

    Attributes:
        name: of the node.
        expected: whether there is a Node object on which the agent should run.
        connected: whether its agent is connected to this leader.
        line: line rates.
        subjects: subjects with traffic above the floor, by name: these have a limit of their own.
        reported: number of subjects in the last report.
        rest: the limit of all others, as sent last.
        sent: the rates that were sent last; None before.
        changed_s: when those were sent.
        stale: whether limits must be sent even if they do not change.
        outstanding: (seq, sum of limits) of sent rates, from the confirmed one on.
        unconfirmed_s: since when the agent has not confirmed any newer rates that were sent; None if it has all.
        view: the node for `decide`; None after a change.
        applied: the sum of the limits that the agent reported last; None if it never did.
        heard_s: when the newest report arrived: the lease counts from an earlier moment.
        answers: its number, on the present connection.
    """

    name: str
    expected: bool = False
    connected: bool = False
    line: Pair = NOTHING
    subjects: dict[str, Subject] = msgspec.field(default_factory=dict)
    reported: int = 0
    rest: Pair = NOTHING
    sent: Rates | None = None
    changed_s: float = float("-inf")
    stale: bool = True
    outstanding: list[tuple[int, Pair]] = msgspec.field(default_factory=list)
    unconfirmed_s: float | None = None
    view: NodeView | None = None
    applied: Pair | None = None
    heard_s: float = float("-inf")
    answers: int = 0

    def held(self) -> Pair:
        """Return the largest sum of limits that the node may enforce while its lease is valid."""
        sums = [total for _, total in self.outstanding]
        if self.applied is not None:
            sums.append(self.applied)
        return Pair(max(each.in_bps for each in sums), max(each.out_bps for each in sums)) if sums else NOTHING


class Unresponsive(NamedTuple):
    """A subject that uses more than its limit, although the node enforces it."""

    node: str
    subject: str
    owner: Owner | None
    excess: Pair


class UplinkCache:
    """The hub's memory. A new one starts with each term as leader.

    Args:
        settings: of the budget.
        now_s: when the term began, by the clock of all `now_s` arguments.
    """

    def __init__(self, settings: Settings, now_s: float) -> None:
        self.settings = settings
        self.nodes: dict[str, NodeRecord] = {}
        self.owners: dict[str, Owner] = {}
        self.groups: list[Group] = []
        self._index: dict[Group, int] = {}
        self._began_s = now_s
        self._heard: dict[str, Pair] = {}
        self.warming = True
        """Whether this leader has not heard enough nodes: it does not know all limits in force."""

    def configure(self, settings: Settings) -> None:
        """Use new settings. All nodes get their limits again, because these contain some of the settings."""
        if settings == self.settings:
            return
        self.settings = settings
        for record in self.nodes.values():
            record.stale, record.view = True, None

    # Events

    def node_changed(self, name: str, expected: bool, now_s: float) -> None:
        """Record whether the fleet has this node. A node that left counts until its limits have decayed."""
        record = self.nodes.get(name)
        if record is None:
            if expected:
                self.nodes[name] = NodeRecord(name, expected=True)
            return
        record.expected = expected
        self._forget(record, now_s)

    def pod_changed(self, uid: str, owner: Owner | None) -> None:
        """Record whose a pod is; None if it is gone."""
        if owner is None:
            self.owners.pop(uid, None)
            return
        before = self.owners.get(uid)
        self.owners[uid] = owner
        record = self.nodes.get(owner.node) if owner != before else None
        if record is not None and uid in record.subjects:
            record.subjects[uid].group = self._group_of(record.name, uid)
            record.view = None

    def connected(self, name: str) -> NodeRecord:
        """Record a connection of a node's agent. An agent without a Node object is known to us from now on."""
        record = self.nodes.setdefault(name, NodeRecord(name))
        record.connected, record.answers, record.stale = True, 0, True
        record.unconfirmed_s = record.view = None
        return record

    def disconnected(self, record: NodeRecord) -> None:
        """Record that a node's connection broke."""
        record.connected = False

    def applied(self, record: NodeRecord, said: Applied, epoch: str, now_s: float) -> bool:
        """Record what a node enforces. Returns whether it confirmed lower limits, so that others can rise."""
        before, confirmed = record.held(), len(record.outstanding)
        if self.warming:
            self._heard.setdefault(record.name, said.total)
        if said.epoch == epoch:
            record.outstanding = [each for each in record.outstanding if each[0] >= said.seq]
        elif record.sent is None:
            record.outstanding = []
        record.applied, record.view = said.total, None
        if record.sent is None or (said.epoch, said.seq) == (epoch, record.sent.seq):
            record.unconfirmed_s = None
        elif len(record.outstanding) < confirmed:
            record.unconfirmed_s = now_s
        after = record.held()
        return after.in_bps < before.in_bps or after.out_bps < before.out_bps

    def reported(self, record: NodeRecord, report: Report, now_s: float) -> bool:
        """Record a report. Returns whether a demand changed, so that a plan is needed."""
        record.heard_s, record.answers = now_s, report.seq
        record.reported = len(report.pods)
        settings = self.settings
        record.line = Pair(
            *(
                min(known or other or budget, budget)
                for known, other, budget in zip(report.line, settings.line, settings.budget, strict=True)
            )
        )
        before = {name: each.want for name, each in record.subjects.items()}
        crowded = self._is_rest_used_up(record, report)
        kept: dict[str, Subject] = {}
        for name, demand in report.pods.items():
            subject = self._measured(record, name, demand, crowded, now_s)
            if subject is not None:
                kept[name] = subject
        record.stale = record.stale or not record.subjects.keys() <= kept.keys()
        record.subjects, record.view = kept, None
        return record.stale or before != {name: each.want for name, each in kept.items()}

    def sent(self, record: NodeRecord, rates: Rates, now_s: float) -> None:
        """Record rates that are sent to a node."""
        for name, subject in record.subjects.items():
            new = rates.pods.get(name)
            if new != subject.rate:
                old = subject.rate or (record.rest if record.sent is not None else NOTHING)
                subject.before = Pair(*(min(a, b) for a, b in zip(old, new or NOTHING, strict=True)))
                subject.rate = new
        record.rest, record.sent, record.changed_s = rates.rest, rates, now_s
        record.stale, record.view = False, None
        if record.unconfirmed_s is None:
            record.unconfirmed_s = now_s
        if rates.dry_run:  # no agent enforces or confirms it
            record.outstanding, record.applied, record.unconfirmed_s = [], rates.total, None
        else:
            record.outstanding.append((rates.seq, rates.total))

    # The input of decide

    def views(self) -> tuple[list[NodeView], list[NodeRecord]]:
        """Return the connected nodes with a report, as views and as records, in the same order."""
        if len(self.groups) > _GROUPS_MAX:
            self._rebuild_groups()
        views, records = [], []
        static = self.static()
        for record in self.nodes.values():
            if not record.connected or not record.answers:
                continue
            if record.view is None or record.view.static != static:
                record.view = self._view(record, static)
            views.append(record.view)
            records.append(record)
        return views, records

    def _view(self, record: NodeRecord, static: Pair) -> NodeView:
        subjects = record.subjects.values()
        rates = [each.rate or NOTHING for each in subjects]
        return NodeView(
            record.name,
            [each.group for each in subjects],
            [each.want[0] for each in subjects],
            [each.want[1] for each in subjects],
            [each[0] for each in rates],
            [each[1] for each in rates],
            record.rest,
            record.held(),
            static,
            record.stale or (record.sent is not None and record.sent.static != static),
        )

    def snapshot(self, views: list[NodeView], now_s: float) -> Snapshot:
        """Return the input of `decide`."""
        self._settle_warming(now_s)
        settings = self.settings
        return Snapshot(
            budget=settings.budget,
            floor=settings.floor,
            weights=settings.weights,
            default_weight=settings.default_weight,
            groups=tuple(self.groups),
            nodes=views,
            away=self._away(now_s),
            excess=self._excess(now_s),
            warming=self.warming,
        )

    def rates(self, record: NodeRecord, new: NodeRates, seq: int, epoch: str) -> Rates:
        """Return the message with a node's new limits."""
        settings = self.settings
        pods = {
            name: Pair(rate_in, rate_out)
            for name, rate_in, rate_out in zip(record.subjects, new.rate_in, new.rate_out, strict=True)
        }
        return Rates(
            seq,
            epoch,
            record.answers,
            settings.lease_s,
            settings.decay_s,
            pods,
            new.rest,
            self.static(),
            settings.dry_run,
        )

    def static(self) -> Pair:
        """Return a node's static share: the configured one, or less if the budget does not suffice for all nodes."""
        count = max(1, len(self.nodes))
        count += -count % max(1, count // 16)  # in steps, so that it does not change with each node
        parts = [budget // count for budget in self.settings.budget]
        wanted_share = self.settings.static
        return Pair(*(min(want, part) if want else part for want, part in zip(wanted_share, parts, strict=True)))

    def unresponsive(self, now_s: float) -> Iterator[Unresponsive]:
        """Yield the subjects that have exceeded their limits for UNRESPONSIVE_S."""
        for record in self.nodes.values():
            if not record.connected or self.settings.dry_run:
                continue
            for name, subject in record.subjects.items():
                since, rate = subject.over_s, subject.rate
                if rate is None or since == [None, None]:
                    continue
                used = subject.demand[:2]
                excess = Pair(
                    *(
                        max(0, use - limit) if at is not None and now_s - at >= UNRESPONSIVE_S else 0
                        for use, limit, at in zip(used, rate, since, strict=True)
                    )
                )
                if excess != NOTHING:
                    yield Unresponsive(record.name, name, self.owners.get(name), excess)

    # Details

    def _measured(
        self, record: NodeRecord, name: str, demand: PodDemand, crowded: bool, now_s: float
    ) -> Subject | None:
        """Return the subject with its new demand; None if its traffic is so small that it shares the rest's limit."""
        subject = record.subjects.get(name)
        before = subject.want if subject is not None else NOTHING
        rate = NOTHING
        if subject is not None and subject.rate is not None and not self.settings.dry_run:
            rate = subject.before if now_s - record.changed_s < SETTLED_S else subject.rate
        used_in, used_out, asked_in, asked_out = demand
        line_in, line_out = record.line
        if subject is None and crowded:
            asked_in, asked_out = line_in if used_in else 0, line_out if used_out else 0
        want = Pair(
            wanted(used_in, asked_in, rate.in_bps, line_in, before.in_bps),
            wanted(used_out, asked_out, rate.out_bps, line_out, before.out_bps),
        )
        floor = self.settings.floor
        is_active = want.in_bps * 2 > floor.in_bps or want.out_bps * 2 > floor.out_bps
        if subject is None:
            if not is_active:
                return None
            subject = Subject(demand, self._group_of(record.name, name), want, active_s=now_s)
        elif is_active:
            subject.active_s = now_s
        elif now_s - subject.active_s > IDLE_S:
            return None
        subject.demand, subject.want = demand, want
        limits = subject.rate
        for way in (0, 1):
            if limits is None or demand[way] * 20 <= limits[way] * 21 or not demand[way]:
                subject.over_s[way] = None
            elif subject.over_s[way] is None and now_s - record.changed_s >= SETTLED_S:
                subject.over_s[way] = now_s
        return subject

    def _is_rest_used_up(self, record: NodeRecord, report: Report) -> bool:
        """Returns whether the limit of the rest throttles the subjects that share it."""
        if record.sent is None or self.settings.dry_run:
            return False
        shared = [demand for name, demand in report.pods.items() if name not in record.subjects]
        return any(is_throttled(sum(each[way] for each in shared), record.rest[way]) for way in (0, 1))

    def _group_of(self, node: str, subject: str) -> int:
        """Return the group of a subject. A UID that is not of a pod of this node has no team."""
        owner = self.owners.get(subject)
        group = Group(owner.team, owner.priority) if owner is not None and owner.node == node else Group("", 0)
        index = self._index.get(group)
        if index is None:
            index = self._index[group] = len(self.groups)
            self.groups.append(group)
        return index

    def _rebuild_groups(self) -> None:
        """Drop groups without subjects: teams and priorities come and go."""
        self.groups, self._index = [], {}
        for record in self.nodes.values():
            record.view = None
            for name, subject in record.subjects.items():
                subject.group = self._group_of(record.name, name)

    def _away(self, now_s: float) -> Pair:
        """Return the limits of all nodes that have no connection or no report yet, and what cannot be known yet."""
        static = self.static()
        known, unheard = [0, 0], [0, 0]
        for record in [each for each in self.nodes.values() if not each.connected or not each.answers]:
            if self._forget(record, now_s):
                continue
            sums = unheard if self.warming and record.name not in self._heard else known
            for way, each in enumerate(self._away_of(record, static, now_s)):
                sums[way] += each
        if self.warming:
            # The limits of an earlier leader were within the budget: nodes that were not heard have the rest at most.
            for way, budget in enumerate(self.settings.budget):
                heard = sum(each[way] for each in self._heard.values())
                unheard[way] = max(unheard[way], budget - heard)
        return Pair(known[0] + unheard[0], known[1] + unheard[1])

    def _away_of(self, record: NodeRecord, static: Pair, now_s: float) -> Pair:
        """Return the largest sum of limits of a silent node: its last limits, or its static share if that is more.

        The static share counts at once, because a node without rates starts with it. The last limits count long after
        they should have decayed: if the agent does not run, they stay in the kernel.
        """
        if not record.connected and now_s - record.heard_s > self.settings.lease_s + SILENT_S:
            return static
        return Pair(*(max(share, held) for held, share in zip(record.held(), static, strict=True)))

    def _forget(self, record: NodeRecord, now_s: float) -> bool:
        """Forget a node that has no Node object and no connection, once its limits have decayed."""
        if record.expected or record.connected:
            return False
        if now_s - record.heard_s < self.settings.lease_s + self.settings.decay_s:
            return False
        self.nodes.pop(record.name, None)
        return True

    def _settle_warming(self, now_s: float) -> None:
        """End the start of a new leader: all nodes were heard, or all leases of earlier leaders have decayed."""
        if not self.warming:
            return
        heard = all(each.name in self._heard for each in self.nodes.values() if each.expected)
        unknown_s = self.settings.lease_s + self.settings.decay_s + RESTART_S
        if (heard and self._heard) or now_s - self._began_s >= unknown_s:
            self.warming = False
            self._heard.clear()

    def _excess(self, now_s: float) -> Mapping[str, Pair]:
        teams: dict[str, Pair] = {}
        for each in self.unresponsive(now_s):
            team = each.owner.team if each.owner is not None else ""
            sums = teams.get(team, NOTHING)
            teams[team] = Pair(sums.in_bps + each.excess.in_bps, sums.out_bps + each.excess.out_bps)
        return teams
