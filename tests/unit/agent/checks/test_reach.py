"""The check `reach` on this machine: lists of nodes that change, break or are missing, and peers that are not there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from muster.agent.check import Setup
from muster.agent.checks.reach import CODES, ReachCheck, make
from muster.fleet.health.finding import Finding
from muster.network.checks.node.pathprobe import PathAnswer, probe
from tests.unit.agent.checks.conftest import write

NOWHERE = "255.255.255.255"
"""No TCP connection can be made to it, and the check does not wait."""


@pytest.fixture
def members(tmp_path: Path) -> Path:
    return tmp_path / "members.json"


def fill(members: Path, *addresses: str) -> None:
    listed = [{"name": "me", "address": "127.0.0.1"}]
    listed += [{"name": f"peer{index}", "address": address} for index, address in enumerate(addresses)]
    members.write_text(json.dumps(listed))


def looker(members: Path, **options: object) -> ReachCheck:
    options = {"membersFile": str(members), "port": 9, **options}
    made = make(Setup(node="me", options=msgspec.Raw(json.dumps(options).encode())))
    assert made is not None
    return made


async def looks(check: ReachCheck, count: int = 2, start_s: float = 1000.0) -> list[Finding]:
    found = [each for number in range(count) for each in await check.look(start_s + 15 * number)]
    assert {(each.check, each.code) for each in found} <= CODES
    return found


async def test_peers_that_answer_or_refuse_are_reached(members: Path) -> None:
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server:
        fill(members, "127.0.0.1", "127.0.0.2")
        assert await looks(looker(members, port=server.sockets[0].getsockname()[1])) == []


async def test_a_peer_that_is_not_reached_is_one_incident_with_its_name(members: Path) -> None:
    fill(members, "127.0.0.1", NOWHERE)
    check = looker(members)
    found = await looks(check, 40)
    assert {(each.component, each.code, each.first_s) for each in found} == {("peer1", "unreached", 1000.0)}
    fill(members, "127.0.0.1", "127.0.0.3")
    assert await looks(check, 2, 1600.0) == []


@pytest.mark.slow
async def test_a_peer_that_stays_unreached_is_reported_again_each_minute(members: Path) -> None:
    """Issue 11: in an hour at most 60 times, and never more than a minute late."""
    fill(members, "127.0.0.1", NOWHERE)
    found = await looks(looker(members), 240)
    assert [each.last_s for each in found] == [1015.0 + 60.0 * number for number in range(60)]


async def test_one_look_without_an_answer_is_nothing(members: Path) -> None:
    check = looker(members)
    for start_s in (1000.0, 1100.0):
        fill(members, NOWHERE)
        assert await looks(check, 1, start_s) == []
        fill(members, "127.0.0.1")
        assert await looks(check, 1, start_s + 15) == []


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"name": 3}]', '[{"address": "a"}]', "\x00"])
async def test_a_list_that_cannot_be_used_is_said_and_the_last_one_stays(members: Path, text: str) -> None:
    fill(members, NOWHERE)
    check = looker(members)
    await looks(check, 1)
    write(members, text)
    found = await looks(check, 3, 1015.0)
    assert sorted((each.component, each.code) for each in found) == [("", "no-peers"), ("peer0", "unreached")]


async def test_a_list_that_is_not_there_is_said(members: Path) -> None:
    assert [each.code for each in await looks(looker(members))] == ["no-peers"]


async def test_node_missing_from_the_list_probes_no_peer(members: Path) -> None:
    write(members, json.dumps([{"name": "other", "address": NOWHERE}]))
    assert await looks(looker(members)) == []


@pytest.mark.parametrize("address", ["", "not an address", "node-7.example", "a..b", "\0", "10.0.0.1/8"])
async def test_peers_without_an_ip_address_are_not_reported_and_no_dns_server_is_asked_about_them(
    members: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", pytest.fail)
    fill(members, address, NOWHERE)
    assert [(each.component, each.code) for each in await looks(looker(members))] == [("peer1", "unreached")]
    assert await probe(address, 9, 60.0) == PathAnswer(connected=False)


@pytest.mark.parametrize("options", [{"port": 0}, {"membersFile": 3}])
def test_settings_that_do_not_fit_are_refused(members: Path, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\."):
        looker(members, **options)


def test_without_a_list_there_is_no_mesh() -> None:
    assert make(Setup(node="me")) is None
