"""The form in which nodes and pods are kept."""

from __future__ import annotations

from typing import Any

from muster.api.names import STAYS
from muster.api.trimmed import trimmed_node
from muster.kube.objects.node import Node
from muster.kube.objects.struct import from_dict


def test_a_trimmed_node_lacks_what_no_part_reads() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "GpuXid79", "status": "True", "message": "fell off"}]
    kept: dict[str, Any] = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"rack": "r1"},
            "annotations": {"muster.dev/scaling": "{}", STAYS: "true"},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "pool", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "60", "nvidia.com/gpu": "7"},
            "capacity": {"nvidia.com/gpu": "8"},  # one of them is broken
            "conditions": conditions,
            "nodeInfo": {"bootID": "b"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }
    dropped = {
        "metadata": {**kept["metadata"], "annotations": {**kept["metadata"]["annotations"], "cni": "x" * 100}},
        "spec": kept["spec"],
        "status": {
            **kept["status"],
            "capacity": {"cpu": "64", "nvidia.com/gpu": "8"},
            "images": [{"names": ["registry/image:tag"], "sizeBytes": 1}],
            "nodeInfo": {"bootID": "b", "kernelVersion": "6.8"},
            "addresses": [*kept["status"]["addresses"], {"type": "Hostname", "address": "n"}],
        },
    }
    assert trimmed_node(from_dict(dropped, Node)) == from_dict(kept, Node)


def test_a_trimmed_node_that_reports_capacity_alone_keeps_it() -> None:
    node = from_dict({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}}, Node)
    assert trimmed_node(node).status.capacity == {"cpu": "4"}
