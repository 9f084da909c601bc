"""Faults of machines and networks, requests of operators, and how machines execute resets and reboots."""

from __future__ import annotations

import msgspec

LAST_WOUND_S = 150.0
"""No fault begins after this time."""
QUARANTINES, RESETS, REBOOTS, REPLACES, DRIVERS = "48", "46", "79", "951", "950"
"""Codes of the check `xid`, by the action that the policy of these runs takes; the last one is a driver's."""
POLICY = f"""
version: 1
revision: simulated
extends: default
codes:
  xid:
    {QUARANTINES}: {{action: quarantine, fault: hardware, test: 1}}
    {RESETS}: {{action: reset-gpu, fault: hardware, test: 1}}
    {REBOOTS}: {{action: reboot, fault: hardware, test: 1}}
    {REPLACES}: {{what: a GPU that is gone, action: replace, fault: hardware, test: 1}}
    {DRIVERS}: {{what: a driver of ours, action: reboot, fault: software, test: 1}}
  preflight:
    failed: {{action: reset-gpu, fault: hardware, test: 1}}
"""


class Wound(msgspec.Struct, frozen=True):
    """A fault of a node `at` seconds after the start.

    Kinds:
    - `fault`: its GPU is broken, and its agent reports it.
    - `silent`: broken, but only a test sees it.
    - `alarm`: the agent reports a fault, and nothing is wrong.
    - `driver`: the same, on many nodes in a row, with another driver.
    - `reboot`: it restarts by itself.
    - `dies`: the machine stops altogether, for good.

    Attributes:
        code: what the agent sees.
        mended_by: `reset`, `reboot`, or nothing.
        reported_s: until the agent has written it.
    """

    kind: str
    node: int
    at: float
    code: str = ""
    mended_by: str = ""
    reported_s: float = 0.0


class Cut(msgspec.Struct, frozen=True):
    """Nodes that are cut off from `at` to `end`, seconds after the start.

    Kinds: `island` (from all others, and from the API server), `deaf` (from the API server alone), `shunned` (from all
    other nodes alone).
    """

    kind: str
    nodes: tuple[int, ...]
    at: float
    end: float


class Plea(msgspec.Struct, frozen=True):
    """An operator's request: `Quarantine` or `Release` of a node. Before a release, the machine is repaired."""

    action: str
    node: int
    at: float


class Habits(msgspec.Struct, frozen=True):
    """How a machine carries out a request: `works`, `fails` (it reports that) or `hangs` (it stays silent).

    Attributes:
        off_s, replaced_s: until a machine that is replaced is off, and after that until another one has joined.
        same_name: the other one has its name.
    """

    reset: str = "works"
    reboot: str = "works"
    reboot_s: float = 10.0
    test_s: float = 5.0
    hangs_tests: int = 0
    off_s: float = 5.0
    replaced_s: float = 30.0
    same_name: bool = False
