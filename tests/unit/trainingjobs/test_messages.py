"""Issue 11.11: what ranks write does not act on the terminal of a user who reads a status or an Event with kubectl."""

from __future__ import annotations

from muster.trainingjobs.plan import RecordEvent
from tests.unit.trainingjobs.world import World, make_job

TAIL = "a\x1b]0;title\x07 \x1b[31mred\x1b[0m \x08\x00 \x9b \u202eabc"
SHOWN = r"a\x1b]0;title\x07 red \x08\x00 \x9b \u202eabc"


def test_last_lines_of_a_rank_are_written_out_in_status_and_events() -> None:
    world = World(make_job(2, backoffLimit=0)).started()
    world.exit_rank(0, 1, tail=TAIL)
    world.until("Failed")
    texts = [world.status.message, world.status.faults[0].message, *(each.message for each in world.status.conditions)]
    texts += [event.message for event in world.actions(RecordEvent)]
    assert any(SHOWN in text for text in texts)
    assert not any(set("\x1b\x07\x08\x00\x9b\u202e") & set(text) for text in texts)
