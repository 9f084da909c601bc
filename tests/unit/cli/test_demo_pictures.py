"""The pictures of the demo: slots on nodes, and the stages of a way back."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from muster.api.training_job import TrainingJob
from muster.cli.jobs.slot_picture import Cell, cells, picture
from muster.cli.local.demo_summary import print_summary, stage_bar
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict


def node(name: str, ready: bool = True) -> Node:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
    return from_dict({"metadata": {"name": name}, "status": status}, Node)


def pod(slot: int, node: str, phase: str = "Running", attempt: int = 1) -> Pod:
    metadata = {"name": f"job-{slot}-{attempt}", "namespace": "ns", "labels": {"muster.dev/slot": str(slot)}}
    return from_dict({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}, Pod)


def job(phase: str) -> TrainingJob:
    spec = {"replicas": 3, "image": "i", "command": ["c"]}
    return from_dict({"metadata": {"name": "job"}, "spec": spec, "status": {"phase": phase}}, TrainingJob)


def test_each_node_and_each_slot_has_its_cell() -> None:
    nodes = [node("a"), node("b", ready=False), node("c")]
    shown = cells(job("Restarting"), [pod(0, "a"), pod(1, "b"), pod(2, "", "Pending")], nodes)
    assert shown == [
        Cell("a", 0, "stands by"),
        Cell("b", 1, "gone"),
        Cell("c", None, "free"),
        Cell("", 2, "waits for a node"),
    ]
    moved = [pod(0, "a"), pod(1, "b"), pod(1, "c", "Pending", 2), pod(2, "d")]
    assert Cell("c", 1, "starting") in cells(job("Running"), moved, nodes)


@pytest.mark.parametrize("width", [5, 16, 40, 110])
def test_a_picture_fits_whatever_the_width(width: int) -> None:
    shown = [Cell(f"node-{number}", number, "running") for number in range(5)]
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(picture(shown, width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    if width >= 16:
        assert all(f"node-{number}" in text.getvalue() for number in range(5))
    assert len(lines) == 2 * (1 if width == 110 else 3 if width == 40 else 5)


def test_a_bar_is_as_long_as_its_stages_took() -> None:
    stages = {"detected": 0.5, "stopped": 0.0, "placed": 0.5, "ready": 1.0}
    assert stage_bar(stages, 2.0, 40) == "\u2591" * 10 + "\u2593" * 10 + "\u2588" * 20
    assert stage_bar(stages, 4.0, 40) == "\u2591" * 5 + "\u2593" * 5 + "\u2588" * 10
    assert stage_bar({}, 4.0, 40) == ""


def test_the_summary_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 11.20."""
    monkeypatch.setenv("COLUMNS", "40")
    stages = {"detected": 0.5, "stopped": 0.1, "backoff": 20.0, "placed": 0.1, "ready": 1.0, "running": 0.1}
    fault = {
        "attempt": 1, "slot": 1, "node": "node-1", "cause": "infrastructure", "rule": "node-lost",
        "what": "a node vanished", "steps_lost": 7, "time_to_useful_s": 2.5, "stages_s": stages,
    }  # fmt: skip
    summary = {
        "phase": "Succeeded", "message": "", "accuracy": 0.97, "steps": 120, "restarts": 1, "steps_lost": 7,
        "total_s": 40, "slots_kept": [4], "faults": [fault], "promises": {"succeeded": True, "all": True},
    }  # fmt: skip
    print_summary(summary, 4)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 40
    assert "backoff 20.00s" in said


def test_the_summary_says_what_each_fault_cost(capsys: pytest.CaptureFixture[str]) -> None:
    fault = {
        "attempt": 1, "slot": 1, "node": "node-1", "cause": "unknown", "rule": "rank-killed",
        "what": "a rank was killed", "steps_lost": 7, "time_to_useful_s": 2.5,
        "stages_s": {"detected": 0.5, "useful": 2.0},
    }  # fmt: skip
    summary = {
        "phase": "Succeeded", "message": "", "accuracy": 0.97, "steps": 120, "restarts": 1, "steps_lost": 7,
        "total_s": 40, "slots_kept": [4], "faults": [fault], "promises": {"succeeded": True, "all": True},
    }  # fmt: skip
    print_summary(summary, 4)
    said = capsys.readouterr().out
    assert "1 restart, 7 steps done again, 40s in all" in said
    assert "a rank was killed: attempt 1 ended at slot 1 on node-1" in said
    assert "4 of 4 slots kept, 7 steps done again, useful again after 2.5s" in said
    assert "detected 0.50s" in said
    assert "\x1b[" not in said
    print_summary(summary | {"promises": {"succeeded": False, "all": False}, "message": "why"}, 4)
    assert "did not happen as promised: succeeded" in capsys.readouterr().out
