"""Every row of docs/whose-fault.md, and how rows of one incident stand to each other."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.core import Event, ObjectReference
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeStatus
from muster.trainingjobs.faults import page
from muster.trainingjobs.faults.hardware import from_event, from_node
from muster.trainingjobs.faults.rules import Evidence, judge, outranks, row_named, row_of
from muster.trainingjobs.faults.table import TABLE

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "hardware": [{"kind": "hardware", "message": "XidError: 79, GPU has fallen off the bus"}],
    "node-deleted": [{"kind": "node", "reason": "Deleted"}, {"kind": "node", "reason": "Replaced"}],
    "node-lost": [{"kind": "node", "reason": "NotReady"}],
    "preempted": [{"kind": "pod", "reason": "PreemptionByScheduler"}, {"kind": "pod", "reason": "Preempting"}],
    "gang-not-bound": [{"kind": "pod", "reason": "GangNotBound"}],
    "evicted": [
        {"kind": "pod", "reason": "EvictionByEvictionAPI"},
        {"kind": "pod", "reason": "DeletionByTaintManager"},
        {"kind": "pod", "reason": "DeletionByPodGC"},
    ],
    "node-shutdown": [{"kind": "pod", "reason": "Terminated"}, {"kind": "pod", "reason": "NodeShutdown"}],
    "storage-eviction": [
        {
            "kind": "pod",
            "reason": "Evicted",
            "message": 'Usage of EmptyDir volume "muster-shm" exceeds the limit "1Gi".',
        },
        {"kind": "pod", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit"},
    ],
    "pressure-eviction": [{"kind": "pod", "reason": "Evicted", "message": "The node was low on resource: memory."}],
    "kubelet-rejection": [
        {"kind": "pod", "reason": reason}
        for reason in (
            "OutOfcpu",
            "OutOfnvidia.com/gpu",
            "UnexpectedAdmissionError",
            "NodeAffinity",
            "TopologyAffinityError",
            "SMTAlignmentError",
            "TaintToleration",
        )
    ],
    "pod-deadline": [{"kind": "pod", "reason": "DeadlineExceeded"}],
    "pod-deleted": [{"kind": "pod", "reason": "Deleted"}, {"kind": "pod", "reason": "Gone"}],
    "out-of-memory": [{"kind": "container", "reason": "OOMKilled", "code": 137}],
    "image-not-there": [
        {"kind": "waiting", "reason": "ErrImagePull", "message": "manifest unknown"},
        {"kind": "waiting", "reason": "ImagePullBackOff", "message": "pull access denied"},
    ],
    "image-name": [
        {"kind": "waiting", "reason": "InvalidImageName"},
        {"kind": "waiting", "reason": "ErrImageNeverPull"},
    ],
    "image-pull": [{"kind": "waiting", "reason": "ImagePullBackOff", "message": "i/o timeout"}],
    "container-config": [
        {"kind": "waiting", "reason": "CreateContainerConfigError", "message": 'secret "a" not found'}
    ],
    "never-started": [{"kind": "waiting", "reason": ""}, {"kind": "waiting", "reason": "CreatePodSandboxError"}],
    "container-start": [{"kind": "container", "reason": "StartError", "code": 128}],
    "container-lost": [
        {"kind": "container", "reason": "ContainerStatusUnknown", "code": 137},
        {"kind": "container", "reason": "Unknown", "code": 255},
    ],
    "supervisor-killed": [{"kind": "container", "reason": "Error", "code": 137}],
    "setup-failed": [{"kind": "container", "reason": "Error", "code": code} for code in (2, 126, 127)],
    "container-exit": [
        {"kind": "container", "reason": "Error", "code": 1},
        {"kind": "container", "reason": "Completed"},
    ],
    "lost-contact": [{"kind": "contact", "reason": "Lost"}],
    "silent": [{"kind": "contact", "reason": "Alive"}],
    "rank-out-of-memory": [{"kind": "rank", "reason": "OutOfMemory", "code": 137, "signal": 9}],
    "rank-hardware": [
        {"kind": "rank", "code": 1, "message": "CUDA error: uncorrectable ECC error encountered"},
        {"kind": "rank", "code": 1, "message": "uncorrectable NVLink error detected during the execution"},
    ],
    "rank-lost-peer": [
        {"kind": "rank", "code": 1, "message": "RuntimeError: Connection reset by peer"},
        {"kind": "rank", "code": 134, "signal": 6, "message": "Watchdog caught collective operation timeout"},
        {"kind": "rank", "code": 1, "message": "ncclRemoteError: remote process exited"},
        {
            "kind": "rank",
            "code": 134,
            "signal": 6,
            "message": "cma_ep.c:85 process_vm_readv(pid=21 {0x5,77442}-->{0x6,77442}) returned -1: No such process",
        },
        {"kind": "rank", "code": 134, "signal": 6, "message": "Transport retry count exceeded on mlx5_0:1/IB"},
    ],
    "rank-terminated": [{"kind": "rank", "code": 143, "signal": 15}, {"kind": "rank", "code": 143}],
    "rank-killed": [{"kind": "rank", "code": 137, "signal": 9}, {"kind": "rank", "code": 137}],
    "rank-crashed": [{"kind": "rank", "code": 128 + number, "signal": number} for number in (6, 7, 8, 11)],
    "rank-failed": [{"kind": "rank", "code": code} for code in (1, 2, 42, 255)],
    "cannot-start": [{"kind": "start", "code": 127, "reason": "Everywhere"}],
    "cannot-start-here": [{"kind": "start", "code": 127, "reason": "CouldNotStart"}],
    "cannot-write": [{"kind": "start", "reason": "NotWritable"}],
    "cannot-read-data": [{"kind": "start", "reason": "DataNotReadable"}],
    "cannot-write-here": [{"kind": "start", "reason": "NotWritableHere"}],
    "could-not-start": [{"kind": "launcher", "code": 127, "reason": "CouldNotStart"}],
    "checkpoint-gone-here": [{"kind": "checkpoint", "reason": "Here"}],
    "checkpoints-lost-here": [{"kind": "checkpoint", "reason": "NoneHere"}],
    "checkpoint-gone": [{"kind": "checkpoint", "message": "the checkpoint of step 40 is gone"}],
    "stalled": [{"kind": "stall", "reason": "Stalled", "message": "no step for 6 min"}],
    "stalled-again": [{"kind": "stall", "reason": "Again"}],
    "launcher-failed": [
        {"kind": "launcher", "code": 255, "reason": "launcher exited"},
        {"kind": "launcher", "code": 255, "reason": "launcher connection lost"},
    ],
}


def seen(at: float = 0.0, slot: int = 0, **fields: Any) -> Evidence:
    return Evidence(seen_at=at, slot=slot, **fields)


def test_every_row_has_an_example() -> None:
    assert [row.id for row in TABLE if row.id not in EXAMPLES] == []
    assert len({row.id for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("rule", "fields"), [(rule, fields) for rule, each in EXAMPLES.items() for fields in each])
def test_the_row_decides_its_example(rule: str, fields: dict[str, Any]) -> None:
    verdict = judge([seen(**fields)])
    assert verdict is not None
    assert verdict.row.id == rule
    assert verdict.cause == row_named(rule).cause


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("out-of-memory", "user"),
        ("rank-killed", "unknown"),
        ("evicted", "infrastructure"),
        ("preempted", "infrastructure"),
        ("node-lost", "infrastructure"),
        ("kubelet-rejection", "infrastructure"),
        ("rank-failed", "user"),
        ("hardware", "infrastructure"),
    ],
)
def test_causes_that_users_rely_on(rule: str, cause: str) -> None:
    assert row_named(rule).cause == cause


def test_the_first_failing_rank_decides_over_those_it_took_along() -> None:
    verdict = judge(
        [
            seen(1.0, 0, kind="launcher", code=1, reason="launcher exited"),
            seen(1.0, 2, kind="rank", code=143, signal=15),
            seen(1.1, 1, kind="rank", code=3, rank=1),
            seen(1.2, 3, kind="rank", code=1, rank=3),
            seen(1.0, 3, kind="rank", code=1, message="Connection reset by peer"),
        ]
    )
    assert verdict is not None
    assert (verdict.row.id, verdict.evidence.slot) == ("rank-failed", 1)


def test_nothing_that_a_program_does_outranks_its_node() -> None:
    node, rank = row_of(seen(kind="node", reason="NotReady")), row_of(seen(kind="rank", code=1))
    assert outranks(node, rank)
    assert not outranks(rank, node)


def test_memory_of_a_container_outranks_the_silence_that_follows() -> None:
    verdict = judge([seen(0.0, kind="contact", reason="Lost"), seen(2.0, kind="container", reason="OOMKilled")])
    assert verdict is not None
    assert verdict.cause == "user"


def test_unknown_evidence_is_charged_to_no_cause() -> None:
    assert row_of(seen(kind="pod", reason="SomethingNew")).cause == "unknown"


def test_the_page_is_what_the_table_says() -> None:
    assert page.main(["--check"]) == 0


def test_hardware_is_read_from_conditions_and_events() -> None:
    bad = NodeCondition(type="GpuUnhealthy", status="True", message="Xid 79")
    pressure = NodeCondition(type="MemoryPressure", status="True")
    assert from_node(Node(metadata=ObjectMeta(name="n"), status=NodeStatus(conditions=(pressure,)))) is None
    found = from_node(Node(metadata=ObjectMeta(name="n"), status=NodeStatus(conditions=(pressure, bad))))
    assert found is not None
    assert found.message == "GpuUnhealthy: Xid 79"
    about = ObjectReference(kind="Node", name="n")
    assert from_event(Event(involved_object=about, reason="Rebooted")) is None
    event = from_event(Event(involved_object=about, reason="XidError", message="79"))
    assert event is not None
    assert event.node == "n"
