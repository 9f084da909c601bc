"""`muster nodes history` in terminals of any width: nothing is wider than they are, and what it says stays whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from muster.api.node_remediation import NodeRemediation, NodeRemediationSpec, NodeRemediationStatus, RemediationStep
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import Fault, Timeline, TrainingJobStatus
from muster.cli.nodes import history as nodehistory
from muster.kube.objects.meta import ObjectMeta

THEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return THEN + timedelta(seconds=seconds)


def entries() -> list[nodehistory.Entry]:
    steps = [
        ("Condition", 1.0, "opened", "Opened"),
        ("Quarantine", 2.5, "xid/79 (catalogue.yaml:12): off the bus, and only a reboot brings it back", "Entered"),
        ("Drain", 3.0, "xid/79", "Entered"),
        ("Drain", 45.0, "empty", "Emptied"),
        ("Drain", 400.0, "released", "Released"),
    ]
    history = tuple(RemediationStep(rung, after(at), 1, reason, event) for rung, at, reason, event in steps)  # type: ignore[arg-type]
    session = NodeRemediation(
        metadata=ObjectMeta(name="n"),
        spec=NodeRemediationSpec(node="node-2", node_uid="u"),
        status=NodeRemediationStatus(rung="Drain", state="Released", history=history),
    )
    timeline = Timeline(
        fault=after(0),
        detected=after(0.2),
        stopped=after(1.2),
        placed=after(1.2),
        ready=after(6.6),
        running=after(6.6),
        useful=after(12.5),
    )
    fault = Fault(attempt=2, slot=2, node="node-2", cause="infrastructure", rule="lost-contact", timeline=timeline)
    job = TrainingJob(
        metadata=ObjectMeta(name="train", namespace="research"),
        spec=TrainingJobSpec(replicas=4, image="none", command=("true",)),
        status=TrainingJobStatus(faults=(fault,)),
    )
    found = [*nodehistory._of_sessions([session]), *nodehistory._of_jobs([job], "node-2")]
    return sorted(found, key=lambda each: each.time)


def shown(room: int) -> list[str]:
    return [line for entry in entries() for line in nodehistory._lines(entry, room)]


def words(lines: Sequence[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("room", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(room: int) -> None:
    lines = shown(room)
    assert max(map(len, lines)) <= room
    assert words(lines) == words(shown(0))
    for stage in ("detected 0.2s,", "stopped 1.0s,", "placed 0.0s,", "ready 5.4s,", "running 0.0s,", "useful 5.9s"):
        assert sum(stage in line for line in lines) == 1, "a stage and its time stand together"


def test_details_of_an_entry_follow_it_and_a_pipe_gets_whole_lines() -> None:
    for room in (0, 120):
        at = " " * 34
        assert shown(room)[0].startswith("2026-03-04 05:06:07Z  Job         research/train: attempt 2 ended at slot 2")
        assert all(line.startswith((at, "2026-03-04 05:")) for line in shown(room))
    assert next(line for line in shown(80) if line.startswith(" ")).startswith(
        " " * 22 + "node-2: infrastructure, rule lost-contact;"
    )
    assert shown(0)[:2] == [
        "2026-03-04 05:06:07Z  Job         research/train: attempt 2 ended at slot 2 on node-2: infrastructure, rule "
        "lost-contact; useful again after 12.5s",
        " " * 34 + "detected 0.2s, stopped 1.0s, placed 0.0s, ready 5.4s, running 0.0s, useful 5.9s",
    ]


def test_each_stage_of_the_ladder_is_shown_where_it_ended() -> None:
    ended = [(each.what, dict(each.stages)) for each in entries() if each.session]
    assert ended == [
        ("Condition", {}),
        ("Quarantine", {"quarantined": 1.5}),
        ("Drain", {}),
        ("Drain", {"drained": 42.5}),
        ("Drain", {"released": 355.0}),
    ]
