"""What the pod of a test says of its node, and what says nothing of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.fleet.preflight.results import read_test
from muster.fleet.preflight.snapshot import TestView as View
from muster.fleet.preflight.testpod import ANNOTATION_TEST
from muster.fleet.preflight.testpod import TestRecord as MadeFor
from muster.gputest.summary import SUMMARY_SCHEMA, FailureRow, GpuRow, Summary
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict

MADE_FOR = MadeFor("n1", "uid-1", "boot-1", 2, "nvidia")
GPUS = (GpuRow("GPU-a", 0, "0000:01:00.0", (4100.0,)), GpuRow("GPU-b", 0, "0000:02:00.0", (None,)))
START, END = "2026-01-01T00:00:00Z", "2026-01-01T00:02:00Z"


def summed(**changes: Any) -> str:
    said = Summary(
        schema=SUMMARY_SCHEMA,
        level=2,
        backend="nvidia",
        passed=True,
        versions={"driver": "570.10"},
        models=("H200",),
        names=("memory_bandwidth_gb_per_s",),
        gpus=GPUS,
    )
    return msgspec.json.encode(msgspec.structs.replace(said, **changes)).decode()


def pod(message: str = "", *, code: int = 0, phase: str = "", started: bool = True, **changes: Any) -> Pod:
    """A pod that has ended. `changes`: of its status, and `node`, `annotation`."""
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message, "finishedAt": END}
    terminated |= {"startedAt": START} if started else {}
    annotation = changes.pop("annotation", msgspec.json.encode(MADE_FOR).decode())
    node = changes.pop("node", "n1")
    return from_dict(
        {
            "metadata": {
                "name": "t",
                "uid": "u",
                "labels": {"muster.dev/preflight": "2"},
                "annotations": {ANNOTATION_TEST: annotation},
            },
            "spec": {"nodeName": node},
            "status": {
                "phase": phase or ("Failed" if code else "Succeeded"),
                "containerStatuses": [{"name": "test", "state": {"terminated": terminated}}],
                **changes,
            },
        },
        Pod,
    )


def view(found: Pod) -> View:
    test = read_test(found)
    assert test is not None
    return test


def test_a_pass_becomes_a_record_with_figures_of_each_gpu_and_the_driver() -> None:
    end = view(pod(summed())).end
    assert end is not None
    found = end.record
    assert found is not None
    assert (found.node_uid, found.boot_id, found.driver, found.level, found.passed) == (
        "uid-1",
        "boot-1",
        "570.10",
        2,
        True,
    )
    assert [(gpu.uuid, gpu.name, gpu.figures) for gpu in found.figures] == [
        ("GPU-a", "H200", {"memory_bandwidth_gb_per_s": 4100.0}),
        ("GPU-b", "H200", {}),
    ]


def test_a_failure_becomes_a_record_that_names_the_gpu() -> None:
    rows = (FailureRow("memory", "wrong-word", 1, "word 7"), FailureRow("disk", "disk-full", -1, "full"))
    end = view(pod(summed(passed=False, failures=rows), code=1)).end
    assert end is not None
    assert end.record is not None
    assert not end.record.passed
    assert [(each.code, each.gpu) for each in end.record.failures] == [("wrong-word", "GPU-b"), ("disk-full", "")]


def test_a_pass_that_ended_with_an_error_is_none() -> None:
    end = view(pod(summed(), code=1)).end
    assert end is not None
    assert end.record is not None
    assert (end.record.passed, [each.code for each in end.record.failures]) == (False, ["crashed"])


def test_a_test_that_was_stopped_at_its_deadline_hung() -> None:
    end = view(pod(code=137, reason="DeadlineExceeded")).end
    assert end is not None
    assert end.record is not None
    assert [each.code for each in end.record.failures] == ["hung"]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(code=127, phase="Failed", started=False, reason="DeadlineExceeded"), "did not start: DeadlineExceeded"),
        (pod("no such file: python", code=128, started=False), "did not start: Error: no such file: python"),
        (pod(code=1, containerStatuses=[], reason="Evicted"), "it did not start: Evicted"),
        (pod("No module named muster", code=1), "no result: Error: No module named muster"),
        (pod(), "no result"),
        (pod(summed(injected="slow"), code=1), "a drill: slow"),
        (pod(summed(backend="cpu:8")), "back end cpu:8, not nvidia"),
        (pod(summed(level=1)), "level 1, not 2"),
        (
            pod(summed(passed=False, failures=(FailureRow("visibility", "not-installed", -1, "no PyTorch"),)), code=3),
            "lacks what tests need: no PyTorch",
        ),
        (pod(summed(), node="n2"), "ran on node n2"),
    ],
)
def test_faults_of_others_give_no_result(found: Pod, why: str) -> None:
    end = view(found).end
    assert end is not None
    assert end.record is None
    assert why in end.why


@pytest.mark.parametrize("annotation", ["", "{}", "nonsense"])
def test_foreign_pod_does_not_count_as_test(annotation: str) -> None:
    assert read_test(pod(summed(), annotation=annotation)) is None


def test_a_test_that_runs_has_no_end_and_says_since_when() -> None:
    running = [{"name": "test", "state": {"running": {"startedAt": START}}}]
    test = view(pod(phase="Running", containerStatuses=running))
    assert (test.end, test.started_at > 0, test.bound, test.retest) == (None, True, True, False)
