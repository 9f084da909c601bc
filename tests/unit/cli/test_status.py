"""The page `muster status` prints, and tables on terminals of any width."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import CheckpointStatus, Fault, Timeline, TrainingJobStatus
from muster.cli.jobs.list import HEADERS, OPTIONAL
from muster.cli.jobs.status import print_status
from muster.cli.output import print_table
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = "rank 0 ended: KeyError: 'x'\nits last lines:\nTraceback (most recent call last):\nKeyError: 'x'"
SAYS_SO = "(pods have failed; the controller has not acted on it yet)"
FAULT = Fault(
    attempt=1,
    slot=0,
    cause="user",
    rule="exit-code",
    message=TRACE,
    time=NOW,
    timeline=Timeline(fault=NOW, detected=NOW + timedelta(seconds=2)),
)


def job(**status: Any) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="train", namespace="default"),
        spec=TrainingJobSpec(replicas=2, command=("python3", "train.py"), image="x"),
        status=TrainingJobStatus(**status),
    )


def pod(slot: int, attempt: int, phase: str) -> Pod:
    labels = {"muster.dev/slot": str(slot)}
    meta = {"name": f"train-{slot}-{attempt}", "labels": labels, "annotations": {"muster.dev/attempt": str(attempt)}}
    return from_dict({"metadata": meta, "spec": {"nodeName": f"node-{slot}"}, "status": {"phase": phase}}, Pod)


def page(capsys: pytest.CaptureFixture[str], job: TrainingJob, *pods: Pod) -> str:
    print_status(job, list(pods), NOW)
    return capsys.readouterr().out


def test_pods_that_failed_unseen_by_the_controller_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    running = job(phase="Running", attempt=3, ready_slots=2, message="attempt 3")
    said = page(capsys, running, pod(0, 1, "Failed"), pod(1, 3, "Running"))  # slot 0 keeps its pod of attempt 1
    assert f"Phase:       Running: attempt 3 {SAYS_SO}\n" in said
    assert "muster exec" not in said
    assert "muster status train --follow" in said


@pytest.mark.parametrize(
    ("phase", "pods"),
    [
        ("Running", (pod(0, 2, "Failed"), pod(0, 3, "Running"), pod(1, 3, "Running"))),
        ("Running", (pod(0, 3, "Running"), pod(1, 3, "Succeeded"))),
        ("Restarting", (pod(0, 3, "Failed"), pod(1, 3, "Running"))),
    ],
)
def test_pods_that_failed_before_are_not_reported_again(
    capsys: pytest.CaptureFixture[str], phase: str, pods: tuple[Pod, ...]
) -> None:
    assert SAYS_SO not in page(capsys, job(phase=phase, attempt=3), *pods)


def test_a_traceback_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = page(capsys, job(phase="Failed", attempt=1, message=f"backoffLimit: {TRACE}", faults=(FAULT,)))
    assert "Phase:       Failed: backoffLimit: rank 0 ended: KeyError: 'x'\n" in said
    assert said.count("Traceback") == 1
    assert "\n  Traceback" in said


def test_a_message_that_no_fault_repeats_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    said = page(capsys, job(phase="Failed", message="first\nsecond"))
    assert "Phase:       Failed: first\n             second\n" in said


def test_only_an_unfinished_recovery_is_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    second = Fault(attempt=2, slot=1, cause="user", time=NOW, timeline=FAULT.timeline)
    said = page(capsys, job(phase="Restarting", attempt=3, faults=(FAULT, second)))
    assert (
        said.index("  so far: detected 2.0s") < said.index("attempt 1 ended") < said.index("  got as far as: detected")
    )
    said = page(capsys, job(phase="Succeeded", attempt=3, faults=(FAULT, second)))
    assert "so far:" not in said


ROW = ("train-gpt-x7k2q", "Succeeded", "16", "16", "2", "1000/20000", "12s ago", "1", "3h12m")


def table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *more: str
) -> tuple[list[str], str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table((*HEADERS, "MESSAGE")[: len(HEADERS) + len(more)], [(*ROW, *more)], OPTIONAL)
    said = capsys.readouterr()
    return said.out.splitlines(), " ".join(said.err.split())


def test_a_narrow_terminal_is_spared_whole_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    wide, said = table(capsys, monkeypatch, 120)
    assert (wide[0].split(), said) == (list(HEADERS), "")
    narrow, said = table(capsys, monkeypatch, 60)
    assert said.startswith("the terminal is too narrow for these columns: RESTARTS")
    left_out = said.partition(": ")[2].split(", ")
    assert narrow[0].split() == [name for name in HEADERS if name not in left_out]
    assert narrow[1].split()[0] == ROW[0]
    assert narrow[1].split()[-1] == ROW[-1]
    for columns in range(30, 120):
        lines, _ = table(capsys, monkeypatch, columns)
        assert all(len(line) <= columns for line in lines), columns
        assert not any("…" in line for line in lines), columns


def test_a_long_last_column_is_cut_but_not_to_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines, _ = table(capsys, monkeypatch, 80, "waiting for 50 of 50 nodes: needs 50 nodes, 13 are free")
    assert "MESSAGE" in lines[0]
    assert len(lines[1]) == 80
    assert lines[1].endswith("…")
    assert "waiting for 50 of" in lines[1]


def test_a_narrow_terminal_is_spared_what_says_nothing_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    why = "its image cannot be pulled, and so on"
    rows = [("node-1", "Untested", "-", "blue", why), ("node-2", "Idle", "-", "-", "-")]
    print_table(("NODE", "STATE", "POOL", "TEAM", "WHY"), rows, ("TEAM", "POOL", "AGE"))
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == ["NODE", "STATE", "TEAM", "WHY"]
    assert said.out.splitlines()[1].startswith("node-1   Untested   blue   its image cannot be pulled, and")
    assert said.err == "", "nothing was left out that said something"
    monkeypatch.setenv("COLUMNS", "200")
    print_table(("NODE", "STATE", "POOL", "TEAM", "WHY"), rows, ("TEAM", "POOL"))
    assert capsys.readouterr().out.splitlines()[0].split() == ["NODE", "STATE", "POOL", "TEAM", "WHY"]


def test_checkpoint_of_another_job_is_shown_without_an_age(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = CheckpointStatus(path="/c/other/step-5", step=5)
    assert "Checkpoint:  step 5: /c/other/step-5\n" in page(capsys, job(phase="Running", last_checkpoint=theirs))
