"""Finds the owners of the nodes that a borrowing job uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from muster.api.words import counted
from muster.cli.teams.team_key import read_team_key
from muster.kube.errors import Forbidden
from muster.kube.objects.node import Node

if TYPE_CHECKING:
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod


async def lenders(client: Client, pods: Iterable[Pod]) -> dict[str, int] | None:
    """Return other teams' names -> number of their nodes that the pods use.

    None if the user may not read nodes. Raises ApiError.
    """
    key = await read_team_key(client)
    try:
        nodes = (await client.list(Node, label_selector=key)).items
    except Forbidden:
        return None
    owners = {node.name: node.metadata.labels[key] for node in nodes}
    on = {pod.spec.node_name: pod.metadata.labels.get(key, "") for pod in pods if not pod.finished}
    return dict(sorted(Counter(owners[name] for name, team in on.items() if owners.get(name, team) != team).items()))


def borrowed_text(lent: Mapping[str, int] | None) -> str:
    """Such as "2 nodes of team speech, 1 node of team vision; all of the job stops when these are needed there"."""
    if lent is None:
        return "nodes of other teams, until they need them"
    if not lent:
        return "nothing now; it may use nodes of other teams until they need them"
    whose = ", ".join(f"{counted(count, 'node')} of team {team}" for team, count in lent.items())
    return f"{whose}; all of the job stops when these are needed there"
