"""The check `network` of the node agent: from files of the kernel to findings of the record."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent.check import Host, Setup
from muster.agent.checks.network import CODES, NetworkCheck, make
from muster.agent.page import serve
from muster.fleet.health.finding import Finding
from muster.kube.progress import Progress
from tests.support.networkproc import NetworkProc, read_files

MINUTE_S = 60.0


@pytest.fixture
def node(host: Host, monkeypatch: pytest.MonkeyPatch) -> NetworkProc:
    monkeypatch.setattr("muster.agent.checks.network.read_node", read_files)
    return NetworkProc(host.proc)


def check(host: Host, **options: Any) -> NetworkCheck:
    return make(Setup(node="n1", host=host, options=msgspec.Raw(json.dumps(options).encode())))


def keys(findings: Any) -> list[tuple[str, str]]:
    return [(each.check, each.code) for each in findings]


async def test_lasting_problem_is_reported_at_the_second_look(host: Host, node: NetworkProc) -> None:
    looking = check(host, plannedNodes=7500)
    assert keys(await looking.look(0.0)) == []
    found = await looking.look(MINUTE_S)
    assert set(keys(found)) == {("neighbours", "planned")}
    assert set(keys(found)) <= CODES
    assert keys(await looking.look(2 * MINUTE_S)) == [], "it has not changed"


async def test_counted_problems_add_up(host: Host, node: NetworkProc) -> None:
    looking = check(host)
    node.neighbours(4, entries=10, table_fulls=1)
    assert keys(await looking.look(0.0)) == []
    node.neighbours(4, entries=10, table_fulls=3)
    (first,) = await _of(looking, "neighbours", MINUTE_S)
    assert (first.code, first.component, first.count) == ("overflow", "IPv4", 4)
    node.neighbours(4, entries=10, table_fulls=4)
    (second,) = await _of(looking, "neighbours", 2 * MINUTE_S)
    assert (second.first_s, second.count) == (first.first_s, 6)


async def _of(looking: NetworkCheck, name: str, now_s: float) -> list[Finding]:
    return [each for each in await looking.look(now_s) if each.check == name]


async def test_number_of_members_is_the_plan_unless_the_operator_says_more(
    host: Host, node: NetworkProc, tmp_path: Path
) -> None:
    members = tmp_path / "members.json"
    members.write_text(json.dumps([{"name": f"n{number}", "address": ""} for number in range(7500)]))
    looking = check(host, membersFile=str(members))
    await looking.look(0.0)
    found = await looking.look(MINUTE_S)
    assert ("neighbours", "planned") in keys(found)
    small = check(host, membersFile=str(members), plannedNodes=10)
    await small.look(0.0)
    assert keys(await small.look(MINUTE_S)) == []


async def test_agent_of_a_peer_answers_the_probe_of_the_path(
    host: Host, node: NetworkProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long request passes the agent's own small HTTP server."""
    monkeypatch.setattr("muster.agent.checks.network._ANSWER_S", 60.0)  # a busy machine answers too
    members = tmp_path / "members.json"
    members.write_text(json.dumps([{"name": "n1", "address": "127.0.0.1"}, {"name": "n2", "address": "127.0.0.2"}]))
    async with serve(Progress(), dict, "127.0.0.2", 0) as port:
        looking = check(host, membersFile=str(members), port=port)
        for now_s in (0.0, MINUTE_S):
            found = await looking.look(now_s)
        answers = await looking._probe_peers()
    assert [(peer, each.connected, each.delivered) for peer, each in answers.items()] == [
        ("n2 (127.0.0.2)", True, True)
    ]
    assert "black-hole" not in [each.code for each in found]


@pytest.fixture
def silent() -> Iterator[int]:
    """A DNS server that never answers; its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield opened.getsockname()[1]


async def test_silent_dns_is_a_finding_with_the_counter_beside_it(
    host: Host, node: NetworkProc, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.agent.checks.network._ANSWER_S", 0.1)
    looking = check(host, dnsServer="127.0.0.1", dnsPort=silent)
    (found,) = await _of(looking, "dns", 0.0)
    assert (found.code, found.count) == ("lost", 2)
    assert found.message == "2 of 2 requests to 127.0.0.1; insert_failed rose by 0"


@pytest.mark.parametrize("options", [{"nearPercent": 0}, {"port": 0}, {"plannedNodes": -1}, {"cloudPorts": "many"}])
def test_wrong_setting_is_an_error(host: Host, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        check(host, **options)
