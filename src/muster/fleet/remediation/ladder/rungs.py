"""The rungs of the remediation ladder, and which rung follows a failed one.

    Observe ─ Condition ─ Quarantine ─ Drain ─ ResetGPU ─ Reboot ─ Replace ─ Human
                              │          │        │         │                 │
                              └──────────┴────────┴─────────┴── a pass ───────┴──► Released

The policy's action names the rung to reach. A failed test or a deadline leads to the next rung. From Quarantine on, the
only way out is a passed Preflight that is newer than all evidence.
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
"""Rungs on which work is done on the node: limited by `working`."""
MACHINE: Final[frozenset[Rung]] = frozenset({"ResetGPU", "Reboot", "Replace"})
"""Rungs that touch the machine itself: not allowed while someone else has cordoned the node."""


def is_above(rung: Rung, other: Rung) -> bool:
    """Return whether a rung is higher on the ladder."""
    return ORDER[rung] > ORDER[other]


def further(rung: Rung, *, gpus: bool, alive: bool, replaceable: bool) -> Rung:
    """Return the rung to try after this one failed.

    Args:
        rung: the rung that was tried.
        gpus: the node has GPUs that can be reset.
        alive: its kubelet can start a pod.
        replaceable: a provider can replace the machine.
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
