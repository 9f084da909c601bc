"""How nodes are emptied: a gang leaves all of them at once, after a spare node is kept for each; others one by one.

An evicted pod of a TrainingJob is a fault of the infrastructure: the job is told to save its work, its attempt ends
once, and nobody is charged (docs/whose-fault.md, `evicted`). The Eviction API asks every PodDisruptionBudget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from muster.api.node_remediation import NodeRemediation
from muster.fleet.remediation import record
from muster.fleet.remediation.exits import is_own
from muster.fleet.remediation.plan import Action, Evict
from muster.fleet.remediation.rungs import ORDER, TARGET
from muster.fleet.remediation.snapshot import NodeView, PodView, View

WHY = "Remediation"
TOGETHER_S = 5.0
"""A gang waits so long for others of its nodes that are on their way to be drained as well."""
SETTLE_S = 2.0
"""What breaks several nodes at once is told by their agents within seconds: a gang leaves after the last of them."""
SILENT_S = 5.0
"""That a spare is waited for is said after this: most are found at the second look."""


@dataclass(slots=True)
class Leaving:
    """What is to leave nodes that are drained.

    Attributes:
        actions: evictions.
        kept: spare nodes, and for which gang.
        going: gangs that leave now, and are not gone yet; those that a budget holds are not waited for.
        wanted: gangs that still lack spares, and the nodes they leave.
        noted: sessions whose gangs have their spares now, and which.
        waits: sessions that wait for a spare, and why in words.
        wake: moments at which something is due.
    """

    actions: list[Action] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    wanted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    noted: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    wake: list[float] = field(default_factory=list)


def leaving(view: View, now: float, moving: Collection[str] = ()) -> Leaving:
    """Say who leaves now, and for whom which node is kept; sessions that are `moving` are left alone."""
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
    spares = _spares(found, view, gang, nodes)
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
    """Whether another node of the gang is to be drained in a moment too: it leaves both at once."""
    named = set(nodes)
    for session in view.sessions.values():
        name, status = session.spec.node, session.status
        if name in named or status.phase != "Open" or status.rung != "Quarantine":
            continue
        evidence = view.evidence.get(name)
        wants = evidence is not None and ORDER[TARGET[evidence.action]] > ORDER["Quarantine"]
        # One that is held back by a budget is not waited for.
        if wants and gang in view.gangs.get(name, ()) and now - record.seconds(status.since) < TOGETHER_S:
            return True
    return False


def _evict(found: Leaving, pods: tuple[PodView, ...], gang: str, now: float) -> None:
    left = tuple(pod for pod in pods if not pod.terminating and not pod.hopeless)
    due = tuple(pod for pod in left if pod.retry_at <= now)
    found.wake += [pod.retry_at for pod in left if pod.retry_at > now]
    if due:
        found.actions.append(Evict(pods=due, gang=gang, why=WHY))


def _spares(found: Leaving, view: View, gang: str, nodes: list[str]) -> list[str]:
    """One empty node like it for each, the same ones as long as they will do; those the gang is on already come off."""
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


def is_trusted(view: View, candidate: NodeView) -> bool:
    """Whether the scheduler may use it: a spare that is still to be tested, or failed, would be kept in vain."""
    tested = view.tested.get(candidate.name)
    return not candidate.pending and (tested is None or (tested.passed and is_own(tested, candidate)))


def is_like(candidate: NodeView, node: NodeView) -> bool:
    """Whether what ran on the node may run on the candidate: the same pool, team and GPUs, and no other taints."""
    if not candidate.ready or candidate.cordoned or candidate.tainted or candidate.joining:
        return False
    return (
        (candidate.pool, candidate.team) == (node.pool, node.team)
        and candidate.gpus >= node.gpus
        and candidate.taints <= node.taints
    )


def drains(sessions: Iterable[NodeRemediation], nodes: Mapping[str, NodeView]) -> dict[str, NodeRemediation]:
    """Return the sessions of nodes that are being emptied, by node: whose pods have to be known."""
    found = {}
    for session in sessions:
        node = nodes.get(session.spec.node)
        if session.status.phase != "Open" or session.status.rung != "Drain" or node is None:
            continue
        if node.uid == session.spec.node_uid and not node.ignored:
            found[node.name] = session
    return found


def candidates(view: View, wanted: Mapping[str, tuple[str, ...]], most: int) -> list[str]:
    """Return nodes that might be spares, to be looked at: without a slot or a session, like one that is left."""
    left = [view.nodes[name] for names in wanted.values() for name in names if name in view.nodes]
    busy = {session.spec.node for session in view.sessions.values() if session.status.phase != "Released"}
    shapes = {(node.pool, node.team, node.gpus, node.taints): node for node in left}.values()
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
