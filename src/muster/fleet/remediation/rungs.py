"""The rungs of the ladder, what leads to each, and which one follows.

    Observe ─ Condition ─ Quarantine ─ Drain ─ ResetGPU ─ Reboot ─ Replace ─ Human
                              │          │        │         │                 │
                              └──────────┴────────┴─────────┴── a pass ───────┴──► Released

The action that the policy decided names the rung to reach; a test that fails, or a deadline, leads one further. From
Quarantine on the way out is a passed Preflight that is newer than everything that led in, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from muster.api.node_remediation import Rung
from muster.fleet.health.policy import Action

RUNGS: Final[tuple[Rung, ...]] = get_args(Rung)
ORDER: Final[Mapping[Rung, int]] = {rung: number for number, rung in enumerate(RUNGS)}

TARGET: Final[Mapping[Action, Rung]] = {
    "none": "Observe",
    "observe": "Observe",
    "condition": "Condition",
    "quarantine": "Quarantine",
    "drain": "Drain",
    "reset-gpu": "ResetGPU",
    "reboot": "Reboot",
    "replace": "Replace",
    "human": "Human",
}

WORKING: Final[frozenset[Rung]] = frozenset({"Drain", "ResetGPU", "Reboot", "Replace"})
"""Rungs on which something is done to the node: bounded by `working`."""
MACHINE: Final[frozenset[Rung]] = frozenset({"ResetGPU", "Reboot", "Replace"})
"""Rungs on which the machine itself is touched: not while somebody else has cordoned the node."""


def is_above(rung: Rung, other: Rung) -> bool:
    """Whether it is further up the ladder."""
    return ORDER[rung] > ORDER[other]


def further(rung: Rung, *, gpus: bool, alive: bool, replaceable: bool) -> Rung:
    """Return the rung to try after this one was in vain.

    Args:
        rung: that was tried.
        gpus: the node has GPUs that can be reset.
        alive: its kubelet can start a pod.
        replaceable: somebody can replace the machine.
    """
    if rung in ("Observe", "Condition", "Quarantine"):
        return "Drain"
    if rung == "Drain" and gpus and alive:
        return "ResetGPU"
    if rung in ("Drain", "ResetGPU") and alive:
        return "Reboot"
    if rung in ("Drain", "ResetGPU", "Reboot") and replaceable:
        return "Replace"
    return "Human"
