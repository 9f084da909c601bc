"""Where the scheduler reports why a gang waits, and how often."""

from __future__ import annotations

from typing import Any

from muster.scheduler.actions.gang_events import AGAIN_S, PATIENCE_S, Reporter
from muster.scheduler.decide import decide
from tests.unit.scheduler.world import World


class Recorder:
    """Takes the place of the recorder that would send Events to an API server."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, about: Any, type_: str, reason: str, message: str, **more: Any) -> None:
        self.said.append(message)


def test_waiting_gang_is_notified_once_and_again_for_other_numbers() -> None:
    world, events, reported = World(), Recorder(), list[tuple[str, str, str]]()
    reporter = Reporter(None, events, None, lambda *said: reported.append(said))  # type: ignore[arg-type]

    def plan(after_s: float = 0.0) -> None:
        world.now += after_s
        snapshot = world.state.snapshot()
        reporter.waiting(snapshot, decide(snapshot, world.now, world.settings), world.now)

    world.add_nodes("a")
    world.add_gang("large", 4)
    plan()
    plan(1.0)
    ((key, why, text),) = reported
    assert (key, why) == ("default/large", "MoreThanTheCluster")
    assert text.startswith("needs 4 nodes; the cluster has 1.")
    world.add_nodes("b")
    plan(1.0)
    assert len(reported) == 1
    plan(AGAIN_S)
    assert reported[1][2].startswith("needs 4 nodes; the cluster has 2.")
    assert len(events.said) == 1, "new numbers cause no Event"
    plan(AGAIN_S)
    assert len(reported) == 2
    gang = world.state.snapshot().find("default", "large")
    assert gang is not None
    reporter.placed(gang, "")
    assert reported[2:] == [("default/large", "", "")]


def test_transient_reason_is_reported_only_if_it_lasts() -> None:
    world, events, reported = World(), Recorder(), list[tuple[str, str, str]]()
    reporter = Reporter(None, events, None, lambda *said: reported.append(said))  # type: ignore[arg-type]
    world.add_nodes("a", "b")
    world.add_member("half", 0, 2)
    for expected in (0, 1):
        snapshot = world.state.snapshot()
        reporter.waiting(snapshot, decide(snapshot, world.now, world.settings), world.now)
        assert len(reported) == len(events.said) == expected
        world.now += PATIENCE_S
    world.remove_gang("half")
    snapshot = world.state.snapshot()
    reporter.waiting(snapshot, decide(snapshot, world.now, world.settings), world.now)
    assert reported[-1] == ("default/half", "", "")
