"""Computes the states of a node, each with its author, time and reason as far as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.api.names import LABEL_BALLOON, TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.api.node_remediation import NodeRemediation
from muster.fleet.balloons.deployment import LABEL_BALLOON_POOL
from muster.fleet.joins.account import JoinAccount
from muster.fleet.remediation.ladder import states
from muster.fleet.scaling.node_views import record_of
from muster.fleet.scaling.status import PoolStatus, ScalingStatus
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.pod import Pod
from muster.kube.objects.taints import HARD_EFFECTS
from muster.teams.audit import NodeAccount

_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_OF_STATES = frozenset({TAINT_QUARANTINE, TAINT_JOINING, _CORDON_TAINT})
"""Taints that another line of the output explains."""
_OF_NOT_READY = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


class NotReady(msgspec.Struct, frozen=True, rename="camel"):
    """The Ready condition's reason and message if it is not True; `reason` is Kubernetes'."""

    since: datetime | None
    reason: str
    message: str


class Cordon(msgspec.Struct, frozen=True, rename="camel"):
    """The author of a cordon, as far as known: from scaling's own record, else from the API server's managedFields."""

    by: str = ""
    since: datetime | None = None
    why: str = ""


class Quarantine(msgspec.Struct, frozen=True, rename="camel"):
    """Its taint."""

    since: datetime | None
    value: str
    effect: str


class Scaled(msgspec.Struct, frozen=True, rename="camel"):
    """The node's state in scaling, while it is neither idle nor in use."""

    pool: str
    state: str


class Balloon(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that only keeps the node from looking idle."""

    pod: str
    pool: str


class Remediation(msgspec.Struct, frozen=True, rename="camel"):
    """The current remediation of the node: a rung of the ladder, and why."""

    care: str
    rung: str
    since: datetime | None
    message: str


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a node, apart from its owner.

    Attributes:
        deleting: since when its object is being deleted; None if it is not.
        not_ready, cordon, quarantine, remediation, joining, scaling: None if the state does not apply.
        balloons: those on it.
        taints: other taints that keep pods away, as `key=value:effect`.
        test: what its test does or waits for; "" if it needs no test, or no obstacle is known.
    """

    deleting: datetime | None = None
    not_ready: NotReady | None = None
    cordon: Cordon | None = None
    quarantine: Quarantine | None = None
    remediation: Remediation | None = None
    joining: JoinAccount | None = None
    scaling: Scaled | None = None
    balloons: tuple[Balloon, ...] = ()
    taints: tuple[str, ...] = ()
    test: str = ""


class _Manager(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of managedFields: the last writer of some fields (Kubernetes: server-side apply)."""

    manager: str = ""
    time: datetime | None = None
    fields_v1: Mapping[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")


class _Managed(msgspec.Struct, frozen=True, rename="camel"):
    managed_fields: tuple[_Manager, ...] = ()


class _Object(msgspec.Struct, frozen=True):
    metadata: _Managed = msgspec.field(default_factory=_Managed)


def managers_of(body: bytes) -> tuple[_Manager, ...]:
    """Read managedFields of an object from the API server's JSON; our structs do not have them."""
    return msgspec.json.decode(body, type=_Object).metadata.managed_fields


def state_names(account: NodeAccount, state: NodeState) -> Iterator[str]:
    """Yield all states of the node: first those that keep it from work, then those that show its use."""
    if state.deleting is not None:
        yield "Deleting"
    if state.not_ready is not None:
        yield "NotReady"
    if state.quarantine is not None:
        yield "Quarantined"
    if state.joining is not None and state.joining.state == "Joining":
        yield "Joining"
    if any(taint.startswith(f"{TAINT_PREFLIGHT}=") for taint in state.taints):
        yield "Untested"
    if state.cordon is not None:
        yield "Cordoned"
    if account.gangs:
        yield "InUse"
    if account.borrowers:
        yield "Lent"
    if state.balloons:
        yield "Balloon"
    if not (account.gangs or account.borrowers or state.balloons):
        yield "Idle"


def state_of(
    node: Node,
    managers: tuple[_Manager, ...],
    pods: list[Pod],
    joining: JoinAccount | None,
    scaling: ScalingStatus | None,
    session: NodeRemediation | None,
    team_key: str,
    test: str = "",
) -> NodeState:
    """Return the state of a node.

    Args:
        node: the node.
        managers: its managedFields.
        pods: those on it.
        joining: its state in joining.
        scaling: scaling's state of all nodes; None if scaling is off or may not be read.
        session: its remediation; None if it never had one.
        team_key: key of the taint that names its owner.
        test: what its test does or waits for.
    """
    ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
    hard = [each for each in node.spec.taints if each.effect in HARD_EFFECTS]
    quarantine = next((each for each in hard if each.key == TAINT_QUARANTINE), None)
    explained = {*_OF_STATES, team_key, *(_OF_NOT_READY if not node.ready else ())}
    not_ready = None
    if not node.ready:
        not_ready = NotReady(None, "NodeStatusNeverUpdated", "its kubelet has not reported yet")
        if ready is not None:
            not_ready = NotReady(ready.last_transition_time, ready.reason, ready.message)
    return NodeState(
        deleting=node.metadata.deletion_timestamp,
        not_ready=not_ready,
        cordon=_cordon(node, managers) if node.spec.unschedulable else None,
        quarantine=Quarantine(quarantine.time_added, quarantine.value, quarantine.effect) if quarantine else None,
        remediation=_remediation(session),
        joining=joining,
        scaling=_scaled(node, scaling.pools if scaling is not None else ()),
        balloons=tuple(sorted((_balloon(pod.metadata) for pod in pods if _is_balloon(pod)), key=lambda it: it.pod)),
        taints=tuple(_said(each) for each in hard if each.key not in explained),
        test=test,
    )


def _remediation(session: NodeRemediation | None) -> Remediation | None:
    care = states.state_of(session)
    if session is None or care is states.NodeCare.NONE:
        return None
    return Remediation(care.value, session.status.rung, session.status.since, session.status.message)


def _cordon(node: Node, managers: tuple[_Manager, ...]) -> Cordon:
    record = record_of(node)
    if record is not None:
        return Cordon(record.by, _time(record.since), record.why)
    for each in managers:
        if "f:unschedulable" in each.fields_v1.get("f:spec", {}):
            return Cordon(each.manager, each.time)
    taint = next((each for each in node.spec.taints if each.key == _CORDON_TAINT), None)
    return Cordon(since=taint.time_added if taint is not None else None)


def _scaled(node: Node, pools: Iterable[PoolStatus]) -> Scaled | None:
    """Return the node's state in scaling. Scaling's status does not name idle nodes and nodes in use."""
    path = node.spec.provider_id.split("/")
    instances = {node.name, *("/".join(path[start:]) for start in range(len(path)))}
    for pool in pools:
        for instance, state in pool.nodes.items():
            if instance in instances:
                return Scaled(pool.name, state)
    record = record_of(node)
    return Scaled(record.pool, record.state) if record is not None and node.spec.unschedulable else None


def _is_balloon(pod: Pod) -> bool:
    return pod.metadata.labels.get(LABEL_BALLOON) == "true" and not pod.finished


def _balloon(meta: ObjectMeta) -> Balloon:
    return Balloon(f"{meta.namespace}/{meta.name}", meta.labels.get(LABEL_BALLOON_POOL, ""))


def _said(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
