"""The check `maintenance` against a local server that speaks Azure's Scheduled Events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from muster.agent.check import Host, Setup
from muster.agent.checks.maintenance import CODES, MaintenanceCheck, make
from muster.fleet.health.finding import Finding
from tests.unit.agent.checks.conftest import write

SOON = "Mon, 11 Apr 2022 22:26:58 GMT"


class Azure:
    """The metadata service of one machine of a scale set."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.incarnation = 1
        self.name = "train_17"
        self.body: bytes | None = None
        self.status = 200
        self.address = ""
        self.posted = 0

    def announce(self, kind: str, **fields: object) -> dict[str, Any]:
        event = {
            "EventId": f"{kind}-1", "EventType": kind, "ResourceType": "VirtualMachine", "EventStatus": "Scheduled",
            "Resources": ["TRAIN_17", "train_18"], "NotBefore": SOON, "Description": "words", "EventSource": "Platform",
            "DurationInSeconds": -1, **fields,
        }  # fmt: skip
        self.events.append(event)
        self.incarnation += 1
        return event

    async def handle(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self.posted += 1
        if request.headers.get("Metadata") != "true" or "X-Forwarded-For" in request.headers:
            return web.json_response({"error": "Bad request. Required metadata header not specified"}, status=400)
        if request.path == "/metadata/instance/compute/name" and "api-version" in request.query:
            return web.Response(text=self.name)
        if request.path != "/metadata/scheduledevents" or request.query.get("api-version") != "2020-07-01":
            return web.Response(status=404)
        if self.body is not None:
            return web.Response(status=self.status, body=self.body)
        document = {"DocumentIncarnation": self.incarnation, "Events": self.events}
        return web.json_response(document, status=self.status)


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    azure = Azure()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", azure.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    azure.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield azure
    await runner.cleanup()


def looker(azure: Azure, **options: object) -> MaintenanceCheck:
    options = {"cloud": "azure", "address": azure.address, **options}
    made = make(Setup(node="n", options=msgspec.Raw(json.dumps(options).encode())))
    assert made is not None
    return made


async def looks(check: MaintenanceCheck, count: int = 1, start_s: float = 1000.0) -> list[Finding]:
    found = [each for number in range(count) for each in await check.look(start_s + 15 * number)]
    assert {(each.check, each.code) for each in found} <= CODES
    return found


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"])
async def test_an_event_is_one_incident_for_as_long_as_it_is_announced(azure: Azure, kind: str) -> None:
    check = looker(azure)
    assert await looks(check, 2) == []
    event = azure.announce(kind)
    found = await looks(check, 40, 1030)
    event["EventStatus"], event["NotBefore"] = "Started", ""
    found += await looks(check, 20, 1630)
    assert {(each.component, each.code, each.first_s) for each in found} == {(f"{kind}-1", kind.lower(), 1030.0)}
    assert found[0].message == f"{kind} not before {SOON}, by Platform, words"
    azure.events.clear()
    assert await looks(check, 10, 1930) == []
    assert azure.posted == 0  # agents acknowledge nothing


async def test_events_of_other_machines_are_not_this_ones(azure: Azure) -> None:
    azure.announce("Reboot", Resources=["train_1", "train_170"])
    azure.announce("Freeze", Resources=[])
    assert await looks(looker(azure)) == []


async def test_finished_maintenance_is_not_announced(azure: Azure) -> None:
    azure.announce("Freeze", EventStatus="Completed")
    azure.announce("Redeploy", EventStatus="Canceled")
    assert await looks(looker(azure)) == []


async def test_two_events_are_two_incidents(azure: Azure) -> None:
    azure.announce("Freeze", EventId="a")
    azure.announce("Freeze", EventId="b")
    assert [(each.component, each.code) for each in await looks(looker(azure))] == [("a", "freeze"), ("b", "freeze")]


@pytest.mark.parametrize(
    "event", [{"EventType": "Evaporate"}, {"EventType": None}, {"EventId": 7}, {"Resources": "train_17"}]
)
async def test_an_event_that_is_not_known_or_cannot_be_read_is_not_silent(azure: Azure, event: dict[str, Any]) -> None:
    azure.announce("Reboot", **event)
    azure.announce("Preempt", EventId="fine")
    assert [each.code for each in await looks(looker(azure))] == ["unknown", "preempt"]


@pytest.mark.parametrize(
    ("status", "body"),
    [(400, b"{}"), (500, None), (200, b""), (200, b"{"), (200, b"[]"), (200, b'{"Events": []}'), (200, b"\xff\xfe")],
)
async def test_a_service_that_does_not_answer_as_it_should(azure: Azure, status: int, body: bytes | None) -> None:
    check = looker(azure)
    azure.status, azure.body = status, body
    found = await looks(check, 6)
    assert [(each.component, each.code) for each in found] == [("", "unreadable")]
    azure.status, azure.body = 200, None
    azure.announce("Reboot")
    assert [each.code for each in await looks(check, 1, 1090)] == ["reboot"]


async def test_a_service_that_is_not_there(azure: Azure) -> None:
    found = await looks(looker(azure, address="http://127.0.0.1:9"), 6)
    assert [each.code for each in found] == ["unreadable"]


async def test_the_machines_name_can_be_set(azure: Azure) -> None:
    azure.announce("Reboot", Resources=["other"])
    assert [each.code for each in await looks(looker(azure, machine="Other"))] == ["reboot"]


@pytest.mark.parametrize(("tag", "made"), [("7783-7084-3265-9085-8269-3286-77", True), ("Not Specified", False)])
def test_azure_is_known_by_its_firmware(host: Host, tag: str, made: bool) -> None:
    write(host.sys / "class/dmi/id/chassis_asset_tag", tag + "\n")
    assert (make(Setup(node="n", host=host)) is not None) == made
    assert make(Setup(node="n", host=host, options=msgspec.Raw(b'{"cloud": "none"}'))) is None


@pytest.mark.parametrize("options", [{"cloud": "aws"}, {"address": "169.254.169.254"}, {"machine": 3}])
def test_settings_that_do_not_fit_are_refused(azure: Azure, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\."):
        looker(azure, **options)
