"""The number of gangs and pods, and the pods themselves: the same for every side except how they name their gang."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACE = "spike"
GPU = "nvidia.com/gpu"
GPUS_PER_NODE = 8
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", GPU: str(GPUS_PER_NODE)}

Fields = Mapping[str, Any]
InGang = Callable[[str, int, int], Fields]
"""(gang, slot, size) -> what a pod says of its gang: parts of `metadata` and `spec`."""


@dataclass(frozen=True, order=True)
class Shape:
    """So many gangs of so many pods; one pod takes a whole node."""

    gangs: int
    size: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read `10x500`. Raises ValueError."""
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not GANGSxPODS, as in 10x500")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.gangs}x{self.size}"

    @property
    def pods(self) -> int:
        """Of all gangs."""
        return self.gangs * self.size

    def gang_names(self) -> list[str]:
        """In the order in which their pods are created."""
        return [f"gang-{number}" for number in range(self.gangs)]


def pod(name: str, scheduler: str, fields: Fields) -> dict[str, Any]:
    """A pod that takes a whole node; `fields` are more of its `metadata` and `spec`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, **fields.get("metadata", {})},
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "worker", "image": "train", "resources": {"limits": {GPU: str(GPUS_PER_NODE)}}},
            ],
            **fields.get("spec", {}),
        },
    }
