"""Describes a node's state in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from muster.cli.nodes.node_state import Cordon, NodeState, state_names
from muster.cli.output import age
from muster.fleet.joins import account as joins
from muster.teams.audit import NodeAccount


def lines(account: NodeAccount, state: NodeState) -> Iterator[str]:
    """Yield the description line by line. The first line is not indented, the others are."""
    yield f"{account.node} {_owner(account)}"
    yield from (f"  {line}" for line in _details(account, state))


def _owner(account: NodeAccount) -> str:
    if account.by_hand:
        return f"belongs to team {account.team}: its label was set by hand, and Muster does not change it"
    owner = f"belongs to team {account.team}" if account.team else "belongs to no team"
    return f"{owner}{_since(account.since)}" if account.since is not None else f"{owner}: no allocation has taken it"


def _details(account: NodeAccount, state: NodeState) -> Iterator[str]:
    yield f"state: {', '.join(state_names(account, state))}"
    if account.why:
        yield f"why: {account.why} (by {account.by})"
    yield f"pool: {account.pool or 'none: no allocation selects it'}"
    if state.deleting is not None:
        yield f"being deleted{_since(state.deleting)}"
    if (not_ready := state.not_ready) is not None:
        said = ": ".join(filter(None, (not_ready.reason, not_ready.message)))
        yield f"not ready{_since(not_ready.since)}: {said or 'its kubelet does not say why'}"
    if (quarantine := state.quarantine) is not None:
        value = f"={quarantine.value}" if quarantine.value else ""
        yield f"in quarantine{_since(quarantine.since)}: taint muster.dev/quarantine{value}:{quarantine.effect}"
    if (care := state.remediation) is not None:
        said = f": {care.message}" if care.message else ""
        yield f"remediation: {care.care}, on rung {care.rung}{_since(care.since)}{said}"
    if state.cordon is not None:
        yield _cordoned(state.cordon)
    if state.joining is not None:
        yield from joins.lines(state.joining)
    if state.scaling is not None:
        yield f"scaling: {state.scaling.state} in pool {state.scaling.pool}"
    if state.test:
        yield f"test: {state.test}"
    if state.taints:
        yield f"tainted: {', '.join(state.taints)}"
    if account.gangs:
        yield f"in use by {', '.join(account.gangs)}"
    if account.borrowers:
        yield f"lent to {', '.join(account.borrowers)}: they leave when a gang of the owner needs it"
    for balloon in state.balloons:
        yield f"kept by balloon {balloon.pod}: it leaves at once for work"
    if account.becomes is not None and account.becomes != account.team:
        whom = f"team {account.becomes}" if account.becomes else "no team"
        yield f"is to go to {whom}: {account.because}"
    elif account.becomes is not None:
        yield "label and taint are to be put back"


def _cordoned(cordon: Cordon) -> str:
    by = f" by {cordon.by}" if cordon.by else ""
    why = f": {cordon.why}" if cordon.why else ""
    unknown = "" if by else ", the API server does not say by whom"
    return f"cordoned{_since(cordon.since)}{by}{why}{unknown}"


def _since(moment: datetime | None) -> str:
    return f" since {moment.astimezone(UTC):%FT%TZ} ({age(moment)})" if moment is not None else ""
