"""Borrowers on modelled nodes of a team: pods that cannot save, what the CLI says, where the team key comes from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.api.names import LABEL_BORROWED, LABEL_TEAM, TEAMS_CONFIG_KEY, TEAMS_CONFIG_MAP
from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.run import check_lending
from muster.cli.teams import team_key
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.waiting import until

KEY = "openai.com/team"


async def test_pods_that_borrow_are_evicted_for_the_owners_gang_of_equal_priority(cluster: Cluster) -> None:
    names = await cluster.add_nodes(2, labels={LABEL_TEAM: cluster.namespace})
    taint = {"key": LABEL_TEAM, "value": cluster.namespace, "effect": "NoSchedule"}
    for name in names:
        await cluster.client.patch(Node, name, {"spec": {"taints": [taint]}})
    cluster.schedule()
    bears: dict[str, Any] = {"tolerations": [{"key": LABEL_TEAM, "operator": "Exists"}]}
    for slot in range(2):
        pod = cluster.pod(f"guest{slot}", 0, 1, spec=bears)
        pod["metadata"]["labels"] = {LABEL_BORROWED: "true", LABEL_TEAM: "red"}
        await cluster.client.create(pod)

    async def full() -> bool:
        return sum(bool(pod.spec.node_name) for pod in await cluster.pods()) == 2

    await until("the borrowers have the nodes", full)
    for slot in range(2):
        pod = cluster.pod("home", slot, 2, spec=bears)
        pod["metadata"]["labels"][LABEL_TEAM] = cluster.namespace
        await cluster.client.create(pod)
    await cluster.until_bound("home", 2)
    assert [pod.name for pod in await cluster.pods() if pod.name.startswith("guest")] == []


async def test_borrower_without_lenders_learns_what_to_do(cluster: Cluster) -> None:
    with pytest.raises(CliError) as reported:
        await check_lending(cluster.client, {"borrow": True, "priorityClassName": f"of-{cluster.namespace}"})
    assert reported.value.exit_code == ExitCode.NOT_FOUND
    assert "nodes cannot be borrowed" in str(reported.value)
    assert "without --borrow" in reported.value.hint


async def test_another_key_in_the_config_map_ends_a_process_that_uses_the_old_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_key, "LOOK_S", 0.05)
    client, namespace = cluster.client, cluster.namespace
    assert await team_key.read_team_key(client, namespace) == LABEL_TEAM
    ended = asyncio.create_task(team_key.until_team_key_changes(client, namespace, LABEL_TEAM))
    made = {"metadata": {"name": TEAMS_CONFIG_MAP, "namespace": namespace}, "data": {TEAMS_CONFIG_KEY: "teamKey: [1"}}
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", **made})
    assert await team_key.read_team_key(client, namespace, "known") == "known"
    assert not ended.done()
    text = f"teamKey: {KEY}\nallocations: [{{nodeSelector: {{a: b}}, team: red, amount: 1}}]"
    data = {"data": {TEAMS_CONFIG_KEY: text}}
    await client.patch(ConfigMap, TEAMS_CONFIG_MAP, data, namespace=namespace)
    async with asyncio.timeout(30):
        await ended
    assert await team_key.read_team_key(client, namespace) == KEY
