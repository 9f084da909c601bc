"""`muster network top` finds agents by their pods, asks them through the API server; unreachable ones are named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner

from muster.cli.errors import CliError
from muster.cli.network import agents
from muster.cli.network.agents import agents_at, find_agents, read_pages
from muster.cli.network.leaks import command as leaks
from muster.cli.network.rates import rate
from muster.cli.network.top import command
from muster.cli.network.uplink import command as uplink
from muster.cli.target import Cluster
from muster.controlplane.ports import free_port
from muster.embedded.layout import Layout
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig, load_config

PAGE = {"node": "n1", "node_uid": "", "ledger_id": "x", "taken_s": 0.0}


def pod(node: str, *, phase: str = "Running", ports: bool = True) -> dict[str, Any]:
    port = [{"name": "metrics", "containerPort": 9451}] if ports else []
    return {
        "metadata": {"name": f"muster-network-{node}", "namespace": "muster-system", "uid": node},
        "spec": {"nodeName": node, "containers": [{"name": "network", "ports": port}]},
        "status": {"phase": phase},
    }


class Server:
    """An API server with pods of agents. It answers for those that `pages` has."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.pages: dict[str, str] = {}
        self.asked: list[str] = []
        self.status = 503
        """Of the answer for a page that it does not have."""
        self.url = ""
        self.details: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path == "/api/v1/namespaces/muster-system/pods":
            assert request.query["labelSelector"] == agents.SELECTOR
            items = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": self.pods}
            return web.json_response(items)
        page = self.pages.get(request.path)
        if page is None:
            said = {"message": "error trying to reach service", "reason": "ServiceUnavailable"}
            text = {"kind": "Status", **said, "details": self.details}
            return web.json_response(text, status=self.status)
        return web.Response(text=page)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Server, Client]]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    cluster = {"name": "c", "cluster": {"server": made.url}}
    kubeconfig = tmp_path / "kubeconfig"
    users = [{"name": "u", "user": {"token": "t"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    parts = {"clusters": [cluster], "users": users, "contexts": contexts, "current-context": "x"}
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **parts}))
    kubeconfig.chmod(0o600)
    try:
        async with Client(load_config(kubeconfig), retry_for_s=0.0) as client:
            yield made, client
    finally:
        await runner.cleanup()


async def test_each_agent_is_asked_through_its_pod_and_failures_do_not_end_the_others(
    server: tuple[Server, Client],
) -> None:
    fake, client = server
    fake.pods = [pod("n1"), pod("n2"), pod("n3", phase="Pending")]
    path = "/api/v1/namespaces/muster-system/pods/muster-network-n1:9451/proxy/v1/traffic"
    fake.pages[path] = "page"
    answers = await read_pages(await find_agents(client, "muster-system", ()), "traffic")
    assert [(each.name, each.page) for each in answers] == [("n1", b"page"), ("n2", b""), ("n3", b"")]
    assert "error trying to reach service" in answers[1].problem
    assert answers[2].problem == "its pod muster-network-n3 is Pending"
    assert path in fake.asked


async def test_missing_agents_and_too_many_are_errors_that_name_what_to_do(
    server: tuple[Server, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, client = server
    with pytest.raises(CliError, match="has no pods of the network agent") as none:
        await find_agents(client, "muster-system", ())
    assert "network.enabled" in none.value.hint
    fake.pods = [pod("n1"), pod("n2")]
    with pytest.raises(CliError, match="no network agent on n9"):
        await find_agents(client, "muster-system", ("n1", "n9"))
    monkeypatch.setattr(agents, "MOST_NODES", 1)
    with pytest.raises(CliError, match="2 nodes have a network agent") as many:
        await find_agents(client, "muster-system", ())
    assert "--node" in many.value.hint
    assert [each.name for each in await find_agents(client, "muster-system", ("n2", "n2"))] == ["n2"]


def test_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(CliError, match="not the address of an agent"):
        agents_at(["10.0.0.7:9451"])
    assert CliRunner().invoke(command, ["--url", "http://x", "--node", "n"], catch_exceptions=True).exit_code != 0


async def test_old_wrong_and_incomplete_reports_are_named(server: tuple[Server, Client]) -> None:
    from muster.cli.network.agents import Answer
    from muster.cli.network.top import _reports

    old = {**PAGE, "ledger_id": "y", "taken_s": 1e9, "age_s": 600, "interval_s": 5.0}
    partial = {**PAGE, "taken_s": 1e9, "problems": ["one thing is not counted"]}
    pages = [
        Answer("old", json.dumps(old).encode(), ""),
        Answer("html", b"<html>", ""),
        Answer("bytes", b'{"node": "\xff"}', ""),
        Answer("part", json.dumps(partial).encode(), ""),
    ]
    reports, problems = _reports(pages)
    assert [each.interval_s for each in reports] == [0.0, 0.0]
    assert [name for name, _ in problems] == ["old", "html", "bytes", "part"]
    assert "600 s old" in problems[0][1]
    assert "not a report of traffic" in problems[1][1]
    assert "not a report of traffic" in problems[2][1]
    assert problems[3][1] == "one thing is not counted"


def test_agent_that_is_named_twice_counts_once() -> None:
    from muster.cli.network.agents import Answer
    from muster.cli.network.top import _reports

    page = json.dumps({**PAGE, "taken_s": 1e9}).encode()
    clone = json.dumps({**PAGE, "taken_s": 1e9, "node": "n2"}).encode()
    reports, problems = _reports([Answer("a", page, ""), Answer("b", page, ""), Answer("c", clone, "")])
    assert [each.node for each in reports] == ["n1", "n2"]
    assert problems == [("b", "it is the agent of a too, and counts once")]
    assert [each.name for each in agents_at(["http://x", "http://x"])] == ["http://x"]


async def test_running_agent_of_a_node_is_asked_and_not_an_evicted_one(server: tuple[Server, Client]) -> None:
    fake, client = server
    evicted = pod("n1", phase="Failed")
    evicted["metadata"] |= {"name": "muster-network-zz", "uid": "zz"}
    fake.pods = [pod("n1"), evicted]
    (found,) = await find_agents(client, "muster-system", ())
    assert found.problem == ""


@pytest.mark.parametrize(
    ("bps", "text"),
    [
        (0, "0 bit/s"),
        (999, "999 bit/s"),
        (999.6, "1 kbit/s"),
        (1_500_000, "1.5 Mbit/s"),
        (100e9, "100 Gbit/s"),
        (2e15, "2000 Tbit/s"),
    ],
)
def test_rates_have_three_digits(bps: float, text: str) -> None:
    assert rate(bps) == text


async def test_pods_without_a_node_are_not_reported_as_absent(server: tuple[Server, Client]) -> None:
    fake, client = server
    waiting = pod("n1", phase="Pending")
    del waiting["spec"]["nodeName"]
    why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient memory."}
    waiting["status"]["conditions"] = [why]
    fake.pods = [waiting]
    with pytest.raises(CliError, match=r"no pod of the network agent is on a node, of 1 .*: 0/3 nodes") as caught:
        await find_agents(client, "muster-system", ())
    assert "kubectl describe pods" in caught.value.hint
    fake.pods = []
    with pytest.raises(CliError) as caught:
        await find_agents(client, "muster-system", ())
    assert "pod-security.kubernetes.io/enforce: privileged" in caught.value.hint


@pytest.mark.parametrize("show", [command, leaks], ids=["top", "leaks"])
def test_agent_that_cannot_be_reached_gives_no_table_and_a_plain_reason(show: click.Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(show, ["--url", url], standalone_mode=False)
    assert result.return_value == 1
    assert result.output == f"{url}: it cannot be reached: Connection refused\n"


async def test_page_of_a_part_that_is_off_is_named_as_such(server: tuple[Server, Client]) -> None:
    fake, client = server
    fake.pods = [pod("n1")]
    fake.status = 404
    found = await find_agents(client, "muster-system", ())
    through_api_server, direct = await read_pages([*found, *agents_at([fake.url])], "addresses")
    assert through_api_server.problem == direct.problem
    assert direct.problem.startswith("it has no page addresses: the part that makes it is off there")
    fake.details = {"kind": "pods", "name": "muster-network-n1"}
    (deleted,) = await read_pages(found, "addresses")
    assert deleted.problem == "its pod has just been deleted; ask again"


@pytest.mark.parametrize("show", [command, leaks, uplink], ids=["top", "leaks", "uplink"])
def test_embedded_cluster_is_not_said_to_lack_a_value_of_the_chart(
    show: click.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(ClusterConfig(server="http://127.0.0.1:1"), "default", "embedded", Layout(tmp_path))
    for module in ("agents", "uplink"):
        monkeypatch.setattr(f"muster.cli.network.{module}.resolve", lambda target: cluster)
    result = CliRunner().invoke(show, [])
    assert isinstance(result.exception, CliError)
    assert "embedded cluster" in result.exception.message
    assert "docs/network.md" in result.exception.hint
