"""Plans drains: a gang is evicted from all drained nodes at once, after spares are reserved; other pods one by one.

The eviction of a TrainingJob's pod is an infrastructure fault (docs/whose-fault.md, `evicted`): the job saves its
work, its attempt ends once, and it is not charged to the user. The Eviction API respects every PodDisruptionBudget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from muster.api.node_remediation import NodeRemediation
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.exits import is_own
from muster.fleet.remediation.ladder.rungs import ORDER, TARGET
from muster.fleet.remediation.plan import Action, Evict
from muster.fleet.remediation.snapshot import PodView, RemediationNode, View

WHY = "Remediation"
TOGETHER_S = 5.0
"""How long a gang waits for others of its nodes that are about to be drained too."""
SETTLE_S = 2.0
"""If several nodes break at once, their agents report it within seconds. A gang is evicted after the last report."""
SILENT_S = 5.0
"""The message that a gang waits for a spare is written after this: most spares are found at the second attempt."""


@dataclass(slots=True)
class Leaving:
    """The result of planning evictions from drained nodes.

    Attributes:
        actions: evictions.
        kept: reserved spare nodes, and the gang of each.
        going: gangs that are being evicted now. A gang that a disruption budget protects is not among them.
        wanted: gangs that still lack spares, and the nodes that they leave.
        noted: sessions whose gangs have their spares now, and the names of the spares.
        waits: sessions that wait for a spare, and the reason as text.
        wake: moments at which to plan again.
    """

    actions: list[Action] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    wanted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    noted: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    wake: list[float] = field(default_factory=list)


def leaving(view: View, now: float, moving: Collection[str] = ()) -> Leaving:
    """Plan which pods to evict now and which spare nodes to reserve. Sessions in `moving` are skipped."""
    found = Leaving()
    drained = drains((each for each in view.sessions.values() if each.name not in moving), view.nodes)
    gangs: dict[str, list[str]] = defaultdict(list)
    for name in sorted(drained):
        there = {pod.gang for pod in view.pods.get(name, ()) if pod.gang}
        for gang in sorted(there | view.gangs.get(name, frozenset())):
            gangs[gang].append(name)
        for pod in view.pods.get(name, ()):
            if not pod.gang:
                _evict(found, (pod,), "", now)
    for gang, nodes in sorted(gangs.items()):
        _gang(found, view, gang, [drained[name] for name in nodes], now)
    return found


def _gang(found: Leaving, view: View, gang: str, sessions: list[NodeRemediation], now: float) -> None:
    nodes = [session.spec.node for session in sessions]
    pods = [pod for name in nodes for pod in view.pods.get(name, ()) if pod.gang == gang]
    spares = _spares(found, view, nodes)
    for spare in spares:
        found.kept[spare] = gang
    missing = len(nodes) - len(spares)
    if missing:
        found.wanted[gang] = tuple(nodes)
    if not pods:
        return
    if _others_come(view, gang, nodes, now):
        found.wake.append(now + 1.0)
        return
    patient = not any(name in view.dead for name in nodes) and not any(pod.terminating for pod in pods)
    if missing and patient:
        since = min(record.seconds(session.status.since, now) for session in sessions)
        due = since + view.config.spare_s
        if now < due:
            found.wake.append(due)
            if now < since + SILENT_S:
                found.wake.append(since + SILENT_S)
                return
            for session in sessions:
                found.waits[session.name] = f"{gang} waits for a spare node before it leaves"
            return
    settled = max(record.seconds(session.status.since) for session in sessions) + SETTLE_S
    if patient and now < settled:
        found.wake.append(settled)
        return
    for session in sessions:
        if spares:
            found.noted[session.name] = f"{', '.join(spares)} for {gang}"
    if any(not (pod.terminating or pod.refused or pod.hopeless) for pod in pods):
        found.going.add(gang)
    _evict(found, tuple(pods), gang, now)


def _others_come(view: View, gang: str, nodes: Iterable[str], now: float) -> bool:
    """Return whether another node of the gang is about to be drained too: the gang then leaves both at once."""
    named = set(nodes)
    for session in view.sessions.values():
        name, status = session.spec.node, session.status
        if name in named or status.state != "Open" or status.rung != "Quarantine":
            continue
        evidence = view.evidence.get(name)
        wants = evidence is not None and ORDER[TARGET[evidence.action]] > ORDER["Quarantine"]
        # If a budget holds the other node back, do not wait for it.
        if wants and gang in view.gangs.get(name, ()) and now - record.seconds(status.since) < TOGETHER_S:
            return True
    return False


def _evict(found: Leaving, pods: tuple[PodView, ...], gang: str, now: float) -> None:
    left = tuple(pod for pod in pods if not pod.terminating and not pod.hopeless)
    due = tuple(pod for pod in left if pod.retry_at <= now)
    found.wake += [pod.retry_at for pod in left if pod.retry_at > now]
    if due:
        found.actions.append(Evict(pods=due, gang=gang, why=WHY))


def _spares(found: Leaving, view: View, nodes: list[str]) -> list[str]:
    """Choose one empty, similar node for each drained node; the choice is stable. Skips nodes in use."""
    chosen: list[str] = []
    for name in nodes:
        node = view.nodes[name]
        for spare in sorted(view.free):
            candidate = view.nodes.get(spare)
            if candidate is None or spare in found.kept or spare in chosen or not is_like(candidate, node):
                continue
            if is_trusted(view, candidate) and not view.gangs.get(spare):
                chosen.append(spare)
                break
    return chosen


def is_trusted(view: View, candidate: RemediationNode) -> bool:
    """Return whether the scheduler may use the spare; it may not if the node's test is pending or failed."""
    tested = view.tested.get(candidate.name)
    return not candidate.pending and (tested is None or (tested.passed and is_own(tested, candidate)))


def is_like(candidate: RemediationNode, node: RemediationNode) -> bool:
    """Return whether the candidate can replace the node: the same pool, team and GPUs, and no other taints."""
    if not candidate.ready or candidate.cordoned or candidate.quarantined or candidate.joining:
        return False
    return (
        (candidate.pool, candidate.team) == (node.pool, node.team)
        and candidate.gpus >= node.gpus
        and candidate.keeps_away <= node.keeps_away
    )


def drains(sessions: Iterable[NodeRemediation], nodes: Mapping[str, RemediationNode]) -> dict[str, NodeRemediation]:
    """Return the sessions of nodes that are being drained, by node."""
    found = {}
    for session in sessions:
        node = nodes.get(session.spec.node)
        if session.status.state != "Open" or session.status.rung != "Drain" or node is None:
            continue
        if node.uid == session.spec.node_uid and not node.ignored:
            found[node.name] = session
    return found


def candidates(view: View, wanted: Mapping[str, tuple[str, ...]], most: int) -> list[str]:
    """Return nodes that might be spares: similar to a drained node, without a slot and without a session."""
    left = [view.nodes[name] for names in wanted.values() for name in names if name in view.nodes]
    busy = {session.spec.node for session in view.sessions.values() if session.status.state != "Released"}
    shapes = {(node.pool, node.team, node.gpus, node.keeps_away): node for node in left}.values()
    found = []
    for name, candidate in view.nodes.items():
        if name in busy or view.gangs.get(name) or not any(is_like(candidate, node) for node in shapes):
            continue
        if not is_trusted(view, candidate):
            continue
        found.append(name)
        if len(found) >= most:
            break
    return sorted(found)
