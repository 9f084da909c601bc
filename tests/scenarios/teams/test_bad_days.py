"""Bad days of allocation on both API servers: input that cannot be used, nodes that flap, clocks that are wrong."""

from __future__ import annotations

import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from muster.api.names import TEAMS_CONFIG_MAP
from muster.cli.errors import ExitCode
from muster.kube.client import Client
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.node import Node
from muster.teams.controller import TeamsController
from muster.teams.plan import Why
from tests.scenarios.teams.conftest import Audited, Typed
from tests.support.anyserver import BY_TEAMS
from tests.support.teamclusters import LEASE, TeamCluster
from tests.support.waiting import until

DAY_S = 86_400.0

BAD = {
    "the same selector and team twice": (
        "- {nodeSelector: {gpu: a}, team: x, amount: 1}\n- {nodeSelector: {gpu: a}, team: x, amount: 2}",
        "line 3: nodeSelector {gpu: a} and team x are those of line 2",
    ),
    "selectors that overlap": (
        "- {nodeSelector: {gpu: a}, team: x, amount: 1}\n- {nodeSelector: {zone: b}, team: y, amount: 2}",
        "line 3: nodeSelector {zone: b} and {gpu: a} of line 2 may select the same node",
    ),
    "a negative amount": ("- {nodeSelector: {gpu: a}, team: x, amount: -1}", "line 2: amount '-1' is negative"),
    "an amount of letters": ("- {nodeSelector: {gpu: a}, team: x, amount: few}", "line 2: amount 'few' is not"),
    "an amount that is a date that cannot be": (
        "- {nodeSelector: {gpu: a}, team: x, amount: 2026-99-99}",
        "line 2: amount '2026-99-99' is not",
    ),
    "more than 100%": (
        "- {nodeSelector: {gpu: a}, team: x, amount: 60%}\n- {nodeSelector: {gpu: a}, team: y, amount: 41%}",
        "line 3: with this entry the shares of nodeSelector {gpu: a} add up to 101%",
    ),
    "a team that no label can name": ("- {nodeSelector: {gpu: a}, team: a b, amount: 1}", "line 2: team 'a b' is not"),
    "an alias of itself": ("- &a [*a]", "line 2: an allocation is not a mapping"),
    "no YAML": ("- {nodeSelector: {gpu: a}", "line 3: no YAML"),
}


def config_ok(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("muster_teams_config_ok")


async def test_an_allocation_that_cannot_be_used_moves_no_node_and_its_line_is_named(
    cluster: TeamCluster, typed: Typed, tmp_path: Path
) -> None:
    await cluster.add_nodes(2)
    await cluster.configure(vision=1)
    registry = CollectorRegistry()
    manager = cluster.manage(registry=registry)
    await cluster.until_owned(vision=1)
    assert config_ok(registry) == 1.0
    for text, said in BAD.values():
        file = tmp_path / "teams.yaml"
        file.write_text(f"allocations:\n{text}\n")
        code, out, err = await typed.fails("teams", "plan", "-f", str(file))
        assert (code, out) == (ExitCode.BAD_INPUT, "")
        assert f"{file}: {said}" in err
        await cluster.configure_text(file.read_text())

        def refused(said: str = said) -> bool:
            return any(each.why is Why.INVALID and said in each.message for each in manager.plan.cautions)

        await until(f"the manager says {said}", refused)
        assert config_ok(registry) == 0.0
    assert await cluster.owners() == {"vision": 1}
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=2)
    assert config_ok(registry) == 1.0


async def test_a_leader_that_starts_without_the_config_map_moves_nothing_and_the_alert_stays(
    cluster: TeamCluster,
) -> None:
    names = await cluster.add_nodes(2)
    await cluster.configure(vision=1)
    first = CollectorRegistry()
    cluster.manage(registry=first)
    await cluster.until_owned(vision=1)
    await cluster.client.delete(ConfigMap, TEAMS_CONFIG_MAP, namespace=cluster.namespace)
    await until("the alert is on", lambda: config_ok(first) == 0.0)

    async def reported() -> bool:
        return "ConfigDeleted" in {
            event.reason for event in (await cluster.client.list(Event, cluster.namespace)).items
        }

    await until("an Event says so", reported)
    await cluster.client.patch(Node, names[0], {"spec": {"taints": None}})
    await cluster.until_owned(vision=1)
    await cluster.stop()
    second = CollectorRegistry()
    cluster.manage(registry=second)
    assert config_ok(second) == 0.0
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=2)
    assert config_ok(second) == 1.0


@BY_TEAMS
async def test_nodes_that_fail_and_recover_again_and_again_do_not_pass_a_teams_place_to_and_fro(
    audited: tuple[Client, Audited], cluster: TeamCluster
) -> None:
    client, wire = audited
    first, _, spare = await cluster.add_nodes(3)
    await cluster.configure(vision=2)
    manager = cluster.manage(client, healthy_after_s=600.0)
    await cluster.until_owned(vision=2)
    await cluster.set_ready(first, False)
    await until("the spare one took its place", lambda: wire.written() == 4)
    await cluster.set_ready(first, True)
    await cluster.set_ready(spare, False)
    await until("that one fails too", lambda: [each.healthy for each in manager.plan.standings] == [1, 0])
    for ready in (True, False) * 3:
        await cluster.set_ready(spare, ready)
        await cluster.set_ready(first, not ready)
    await cluster.configure(vision=1)  # decided about after all that
    await cluster.until_owned(vision=1)
    assert wire.written() <= 5, "nodes moved to and fro"


@BY_TEAMS
async def test_times_that_nodes_and_other_leaders_write_are_not_believed(
    audited: tuple[Client, Audited], cluster: TeamCluster
) -> None:
    client, wire = audited
    names = await cluster.add_nodes(3)
    await cluster.configure(vision=2)
    first = cluster.manage(lease=LEASE, clock=lambda: time.time() + DAY_S)
    await cluster.until_owned(vision=2)
    second = cluster.manage(client, lease=LEASE, clock=lambda: time.time() - DAY_S)
    for name, year in zip(names, ("1971", "2071", "2026"), strict=True):
        at = f"{year}-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": at, "lastTransitionTime": at}
        await cluster.client.patch(Node, name, {"status": {"conditions": [ready]}}, subresource="status")
    await until("the first one has decided", lambda: first.plan.standings)
    await cluster.end_first()
    await until("the next one leads", lambda: leads(second))
    assert wire.of_nodes() == [], "it writes what is as it should be"
    await cluster.set_ready(names[0], False)

    async def replaced() -> bool:
        return cluster.key in (await cluster.client.get(Node, names[2])).metadata.labels

    await until("and judges a node by what it sees itself", replaced)


def leads(manager: TeamsController) -> bool:
    return bool(manager.plan.standings)
