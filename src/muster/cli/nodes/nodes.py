"""`muster nodes`: shows the states of nodes and their reasons."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from muster.api.names import CONTROLLER_LEASE
from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.watch import nearest
from muster.cli.names import node_argument
from muster.cli.nodes.history import command as history
from muster.cli.nodes.requests import quarantine, release
from muster.cli.output import age, note, output_option, print_data, print_table, say
from muster.cli.table_group import system_namespace, table_group
from muster.cli.target import Target, cluster_options, if_allowed, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.api.preflight import Preflight
    from muster.cli.nodes.node_state import NodeState
    from muster.cli.target import Cluster
    from muster.fleet.joins.account import JoinAccount
    from muster.kube.client import Client
    from muster.kube.objects.node import Node
    from muster.teams.audit import NodeAccount
    from muster.teams.cache import Holdings

SILENT_S = 60.0
"""A leader renews its lease every two seconds; this leaves room for clocks that differ."""


HEADERS = ("NODE", "STATE", "SINCE", "POOL", "TEAM", "GPUS", "TESTED", "WHY")
OPTIONAL = ("POOL", "TEAM", "GPUS", "TESTED", "SINCE")


@table_group
async def command(cluster: Cluster, namespace: str, output: str) -> int:
    """Show all nodes with one state each.

    If several states apply, Muster shows one that keeps the node from work rather than one that says how the node is
    used.
    """
    from msgspec import to_builtins

    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.cli.nodes.node_list import node_lines
    from muster.teams.load import load_holdings, load_source

    async with cluster.client() as client:
        holdings = await load_holdings(client, await load_source(client, namespace))
        sessions = await if_allowed(client.list_all(NodeRemediation))
        listed = await if_allowed(client.list_all(Preflight))
        tests = {each.name: each for each in listed.items} if listed is not None else {}
        waits = await _waits(client, namespace, holdings, tests)
    lines = list(
        node_lines(holdings, {each.name: each for each in sessions.items} if sessions is not None else {}, tests, waits)
    )
    if output:
        print_data({"nodes": to_builtins(lines)}, output)
        return ExitCode.DONE
    if not lines:
        note("there are no nodes")
        return ExitCode.DONE
    rows = []
    for each in lines:
        tested = f"level {each.test_level}, {age(each.test_time)}" if each.test_level is not None else "-"
        who = (each.pool or "-", each.team or "-", str(each.gpus))
        rows.append((each.node, each.state, age(each.since), *who, tested, each.why.partition("\n")[0]))
    print_table(HEADERS, rows, OPTIONAL)
    return ExitCode.DONE


command.add_command(history, "history")
command.add_command(quarantine)
command.add_command(release)


@command.command()
@node_argument()
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def why(name: str, system_namespace: str, output: str, target: Target) -> int:
    """Explain NODE: its owner, its states and their reasons, its pods, and whether it is about to change teams."""
    account, state = asyncio.run(_asked(resolve(target), system_namespace, name))
    if output:
        from msgspec import to_builtins

        from muster.cli.nodes.node_state import state_names

        states = list(state_names(account, state))
        print_data({**to_builtins(account), "states": states, **to_builtins(state)}, output)
        return ExitCode.DONE
    from muster.cli.nodes.node_words import lines

    for line in lines(account, state):
        say(line)
    return ExitCode.DONE


async def _waits(
    client: Client, namespace: str, holdings: Holdings, tests: Mapping[str, Preflight], name: str = ""
) -> Mapping[str, str]:
    """Returns what tests of nodes do or wait for, for all nodes or for one."""
    from muster.api.names import LABEL_TEAM
    from muster.cli.nodes.test_waits import read_test_waits
    from muster.teams.usage import Rank

    held = [holdings.nodes[name]] if name else list(holdings.nodes.values())
    in_use = frozenset(each.name for each in held if each.rank is not Rank.IDLE)
    key = holdings.team_key or LABEL_TEAM
    return await read_test_waits(client, namespace, key, [each.node for each in held], tests, in_use)


async def _asked(cluster: Cluster, namespace: str, name: str) -> tuple[NodeAccount, NodeState]:
    from muster.teams.audit import account_of
    from muster.teams.decide import decide
    from muster.teams.load import load_holdings, load_source

    async with cluster.client() as client:
        holdings = await load_holdings(client, await load_source(client, namespace))
        if name not in holdings.nodes:
            near = nearest(name, sorted(holdings.nodes))
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "kubectl get nodes lists them"
            raise CliError(f"no node '{name}'", hint, ExitCode.NOT_FOUND)
        state = await _state(client, namespace, holdings, name)
    return account_of(holdings, name, decide(holdings, time.time())), state


async def _state(client: Client, namespace: str, holdings: Holdings, name: str) -> NodeState:
    from muster.api.names import LABEL_TEAM, remediation_name
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.cli.nodes.node_state import managers_of, state_of
    from muster.fleet.scaling.status import read_status
    from muster.kube.objects.node import Node
    from muster.kube.objects.pod import Pod
    from muster.kube.objects.struct import decode

    session = remediation_name(name, holdings.nodes[name].node.uid)
    body, pods, scaling, remediation, test = await asyncio.gather(
        client.request("GET", Node.RESOURCE.path(name=name)),
        client.list(Pod, field_selector=f"spec.nodeName={name}"),
        if_allowed(read_status(client, namespace)),
        if_allowed(client.get(NodeRemediation, session)),
        if_allowed(client.get(Preflight, name)),
    )
    waits = await _waits(client, namespace, holdings, {name: test} if test is not None else {}, name)
    node, nodes = decode(body, Node), [held.node for held in holdings.nodes.values()]
    joining = await _joining(client, namespace, node, nodes)
    key = holdings.team_key or LABEL_TEAM
    return state_of(node, managers_of(body), pods.items, joining, scaling, remediation, key, waits.get(name, ""))


async def _joining(client: Client, namespace: str, node: Node, nodes: list[Node]) -> JoinAccount | None:
    """Returns the node's joining state. If no controller opens nodes, only that the node is held back."""
    from msgspec.structs import replace

    from muster.fleet.joins.account import account_of
    from muster.fleet.joins.config import CONFIG_MAP
    from muster.fleet.joins.record import is_held, pace_of
    from muster.kube.objects.coordination import Lease
    from muster.kube.objects.core import ConfigMap

    if not is_held(node):
        return account_of(node, nodes, None)
    config, lease = await asyncio.gather(
        if_allowed(client.get(ConfigMap, CONFIG_MAP, namespace)),
        if_allowed(client.get(Lease, CONTROLLER_LEASE, namespace)),
    )
    account = account_of(node, nodes, pace_of(config))
    assert account is not None
    renewed = lease.spec.renew_time if lease is not None else None
    if renewed is None or time.time() - renewed.timestamp() < SILENT_S:
        return account
    said = f"{account.why}; nodes are not opened now: no Muster controller has renewed its lease since {renewed:%FT%TZ}"
    return replace(account, why=said, opens_in_seconds=None)
