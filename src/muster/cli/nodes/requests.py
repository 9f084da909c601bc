"""`muster nodes quarantine` and `release`: record an operator's request, which the controller then carries out."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from muster.api.names import remediation_name
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import node_argument
from muster.cli.output import note
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.node_remediation import NodeRemediation, RequestedAction
    from muster.cli.target import Cluster
    from muster.kube.client import Client

_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.3
_REASON_MAX = 512


def _checked_reason(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse an empty or too long reason before any request; a click callback."""
    reason = value.strip()
    if not any(character.isalnum() for character in reason) or len(reason) > _REASON_MAX or not reason.isprintable():
        raise BadInput(f"--reason has to say what for, in one line of at most {_REASON_MAX} characters")
    return reason


_reason = click.option(
    "--reason",
    required=True,
    metavar="TEXT",
    callback=_checked_reason,
    help="The reason, in one line; Muster shows it with the node.",
)


@click.command()
@node_argument()
@_reason
@cluster_options()
def quarantine(name: str, reason: str, target: Target) -> int:
    """Take NODE out of use: running pods stay, and no new pods start. Only `release` returns it to use."""
    asyncio.run(_quarantine(resolve(target), name, reason))
    note(f"node {name} is in quarantine; {prefix()} nodes release {name} --reason ... lets it back after a test")
    return ExitCode.DONE


@click.command()
@node_argument()
@_reason
@cluster_options()
def release(name: str, reason: str, target: Target) -> int:
    """Ask Muster to return NODE to use.

    It does so when the node has passed a test; a node without GPUs returns at once.
    """
    if asyncio.run(_release(resolve(target), name, reason)):
        note(f"node {name} is let back when it has passed a test (docs/preflight.md); one without GPUs is let back now")
        note(f"{prefix()} nodes history {name} says how it is")
    else:
        note(f"node {name} was not in quarantine yet, and is not put there any more")
    return ExitCode.DONE


async def _quarantine(cluster: Cluster, name: str, reason: str) -> None:
    from muster.fleet.remediation.ladder.record import is_quarantined

    async with cluster.client() as client:
        session = await _asked(client, name, await _uid(client, name), "Quarantine", reason)
        deadline = time.monotonic() + _PATIENCE_S
        while not is_quarantined(session.status):
            if time.monotonic() > deadline:
                said = f": {session.status.message}" if session.status.message else ""
                raise CliError(
                    f"node {name} is not in quarantine after {_PATIENCE_S:g} s{said}; it stays asked for until "
                    f"`{prefix()} nodes release {name} --reason ...` takes that back",
                    "is health.enabled set in the chart, and is remediation not paused? docs/remediation.md",
                    ExitCode.TIMED_OUT,
                )
            await asyncio.sleep(_LOOK_EVERY_S)
            session = await client.get(type(session), session.name)


async def _release(cluster: Cluster, name: str, reason: str) -> bool:
    """Request the node's release.

    Returns whether the node was in quarantine. If not, this withdraws a request for quarantine.
    """
    from muster.fleet.remediation.ladder.record import asks, is_quarantined

    async with cluster.client() as client:
        uid = await _uid(client, name)
        session = await _session(client, remediation_name(name, uid))
        if session is None or not (is_quarantined(session.status) or asks(session, "Quarantine")):
            raise CliError(
                f"node {name} is not in quarantine because of Muster",
                f"{prefix()} nodes why {name} says how it is",
                ExitCode.CONFLICT,
            )
        await _asked(client, name, uid, "Release", reason)
        return is_quarantined(session.status)


async def _session(client: Client, name: str) -> NodeRemediation | None:
    from muster.api.node_remediation import NodeRemediation
    from muster.kube.errors import NotFound

    try:
        return await client.get(NodeRemediation, name)
    except NotFound:
        return None


async def _uid(client: Client, name: str) -> str:
    from muster.kube.errors import NotFound
    from muster.kube.objects.node import Node

    try:
        return (await client.get(Node, name)).uid
    except NotFound:
        raise CliError(f"no node '{name}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND) from None


async def _asked(client: Client, name: str, uid: str, action: RequestedAction, reason: str) -> NodeRemediation:
    """Write the request into the node's session. If there is no session, create one."""
    from muster.api.node_remediation import NodeRemediation, NodeRemediationSpec, RemediationRequest
    from muster.cli.caller import caller_name
    from muster.kube.errors import AlreadyExists, NotFound
    from muster.kube.objects.meta import ObjectMeta
    from muster.kube.objects.struct import to_dict

    by = (await caller_name(client))[:128]
    request = RemediationRequest(action=action, by=by, time=datetime.now(UTC), reason=reason)
    meta = ObjectMeta(name=remediation_name(name, uid))
    try:
        return await client.patch(NodeRemediation, meta.name, {"spec": {"request": to_dict(request)}})
    except NotFound:
        spec = NodeRemediationSpec(node=name, node_uid=uid, request=request)
    try:
        return await client.create(NodeRemediation(metadata=meta, spec=spec))
    except AlreadyExists:  # the controller created the session at the same moment
        return await client.patch(NodeRemediation, meta.name, {"spec": {"request": to_dict(request)}})
