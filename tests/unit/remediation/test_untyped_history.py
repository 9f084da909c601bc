"""History entries and quarantine records of versions without typed fields: read once, and typed from then on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from muster.api.node_remediation import RemediationStep
from muster.api.untyped_steps import typed
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.snapshot import QuarantineRecord
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.struct import decode, encode
from tests.unit.remediation.remediationworld import World
from tests.unit.remediation.test_requests import ask

TESTED = datetime(2026, 3, 4, 5, 6, 7, 89000, UTC)
WRITTEN = "2026-03-04T05:07:00Z"


def read(rung: str, reason: str) -> RemediationStep:
    """Decode an entry as the version without typed fields wrote it."""
    body = {"rung": rung, "time": WRITTEN, "generation": 3, "reason": reason}
    return decode(msgspec.json.encode(body), RemediationStep)


@pytest.mark.parametrize(
    ("rung", "reason", "fact"),
    [
        ("Observe", "opened: xid/79 (catalogue.yaml:12)", {"event": "Opened"}),
        ("Quarantine", "xid/79 (catalogue.yaml:12): fell off the bus", {"event": "Entered"}),
        ("Quarantine", "joining: xid/79: fell off the bus", {"event": "Joining"}),
        ("Quarantine", "asked for by ada: a cable: loose", {"event": "Requested", "by": "ada"}),
        ("Drain", "spare n4 for ml/train", {"event": "SpareReserved"}),
        ("Drain", "empty", {"event": "Emptied"}),
        ("Drain", "emptying is planned", {"event": "Entered"}),
        ("ResetGPU", "reset", {"event": "Reset"}),
        ("Reboot", "boot 0c1f-22", {"event": "RebootRequested", "boot_id": "0c1f-22"}),
        ("Reboot", "boot ", {"event": "RebootRequested"}),
        ("Reboot", "booted", {"event": "Booted"}),
        ("Human", "shared xid/79: at least 4 nodes", {"event": "SharedFault", "fault_key": "xid/79"}),
        ("Drain", "released: node n0 is gone", {"event": "Released"}),
        ("Drain", "released: asked for by ada: done", {"event": "Released", "by": "ada"}),
        (
            "Drain",
            "released: level 2 passed at 2026-03-04T05:06:07.089000+00:00",
            {"event": "Released", "test_level": 2, "tested_at": TESTED},
        ),
    ],
)
def test_entry_without_event_gets_the_fields_that_its_text_holds(
    rung: str, reason: str, fact: dict[str, object]
) -> None:
    step = read(rung, reason)
    expected = {**msgspec.structs.asdict(record.Fact()), **fact}
    assert {name: getattr(step, name) for name in expected} == expected
    assert step.reason == reason


def test_converted_entry_keeps_its_fields_without_its_text() -> None:
    step = read("Reboot", "boot 0c1f-22")
    silent = msgspec.structs.replace(step, reason="")
    assert decode(encode(silent), RemediationStep) == silent


def test_text_of_an_entry_with_an_event_is_not_read() -> None:
    moment = datetime(2026, 3, 4, tzinfo=UTC)
    assert RemediationStep("Reboot", moment, 1, "released: boot x", "Entered").event == "Entered"


@pytest.mark.parametrize(
    ("why", "event"),
    [("joining: xid/79: off the bus", "Joining"), ("asked for by ada: a cable", "Requested"), ("boot", "Entered")],
)
def test_record_on_a_node_without_event_gets_one(why: str, event: str) -> None:
    body = {"session": "n0-1", "generation": 2, "since": WRITTEN, "why": why, "by": "muster-remediation"}
    annotations = {record.ANNOTATION_RECORD: msgspec.json.encode(body).decode()}
    mark = record.record_of(Node(metadata=ObjectMeta(name="n0", annotations=annotations)))
    assert mark is not None
    assert mark.event == event
    silent = msgspec.structs.replace(mark, why="")
    assert msgspec.json.decode(msgspec.json.encode(silent), type=QuarantineRecord) == silent


def rebooted(world: World) -> None:
    world.fault("n0", "reboot")
    world.settle()
    world.finish_steps()
    world.settle(1.0)
    world.test("n0")
    world.settle()


def asked_for(world: World) -> None:
    ask(world, "n0", "Quarantine")
    world.settle()
    ask(world, "n0", "Release")
    world.settle(1.0)
    world.test("n0")
    world.settle()


@pytest.mark.parametrize("story", [rebooted, asked_for])
def test_older_version_reads_the_same_events_in_the_texts_of_this_version(story: Callable[[World], None]) -> None:
    world = World()
    story(world)
    history = world.session("n0").status.history
    assert history[-1].event == "Released"
    for step in history:
        kept = {"fault_key": step.fault_key} if step.event != "SharedFault" else {}  # older versions keep no other key
        read_again = {**msgspec.structs.asdict(record.Fact()), **kept, **typed(step.reason)}
        assert {name: getattr(step, name) for name in read_again} == read_again
