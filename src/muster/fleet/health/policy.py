"""The policy in memory: what each code means, what follows from many of them, and which nodes differ.

It is read by `policytext`; the shipped one is `catalogue.yaml`, beside this file. docs/health.md says what the fields
mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

Action = Literal["none", "observe", "condition", "quarantine", "drain", "reset-gpu", "reboot", "replace", "human"]
"""What is done about a node, mildest first: the ladder of remediation."""
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
RANK: Final[Mapping[Action, int]] = {action: rank for rank, action in enumerate(ACTIONS)}

Job = Literal["", "restart-app"]
"""What is done about the job that runs there, if that is not what the action does anyway."""
Fault = Literal["unknown", "application", "software", "hardware"]
"""Whose fault it is; of two that are equally serious the later one in this list is believed."""
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

ELSEWHERE: Final = ("nvidia", "nvidiaThen", "eks", "gpud", "azure")
"""Whose opinion of a code is told beside ours."""

DAY_S: Final = 86400.0

UNKNOWN_CODE: Final = "unknown"
"""The entry of a check that holds for codes it does not name."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one code of one check means."""

    what: str
    action: Action
    fault: Fault
    where: str
    """FILE:LINE of what set the action."""
    job: Job = ""
    fatal: bool = False
    """Counts where a rule counts fatal ones."""
    test: int = 0
    """The level of preflight it has to pass before it is trusted again; 0: the usual one."""
    keep_s: float = DAY_S
    """For how long after it was last seen it counts."""
    elsewhere: Mapping[str, str] = {}
    """By the names in ELSEWHERE; what nobody says is not there."""


class Beside(msgspec.Struct, frozen=True):
    """What has to have been seen at about the same time."""

    seconds: float
    component: Literal["same", "other"]
    codes: tuple[str, ...]
    """These; where there are none, any code that the rule itself is not about."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from several findings; every condition that is there has to hold."""

    name: str
    why: str
    action: Action
    fault: Fault
    within_s: float
    where: str
    """FILE:LINE of what set the action."""
    check: str = ""
    codes: tuple[str, ...] = ()
    """Where there are none, any code of the check."""
    fatal: bool = False
    """Only codes that are fatal."""
    per: Literal["component", "node"] = "component"
    incidents: int = 1
    events: int = 1
    components: int = 1
    """So many at least: findings, what they count together, and different components."""
    remediations: int = 0
    """So many remediations of the node: then what would be one more becomes this action."""
    beside: Beside | None = None
    excuses: tuple[str, ...] = ()
    """Rules, or entries as CHECK/CODE, that do not get to see the findings this rule explains."""
    job: Job = ""
    test: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with a policy of their own."""

    name: str
    node_selector: Mapping[str, str]
    policy: Policy


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is done about which findings."""

    revision: str
    """For people and reports: which policy decided."""
    codes: Mapping[str, Mapping[str, Entry]]
    """By check, then code."""
    unknown: Entry
    """Of a check that is not in the policy: an agent newer than it."""
    rules: tuple[Rule, ...]
    pools: tuple[Pool, ...] = ()

    def of_node(self, labels: Mapping[str, str]) -> Policy:
        """The policy for a node with these labels: of the first pool that selects it, or this one."""
        for pool in self.pools:
            if all(labels.get(key) == value for key, value in pool.node_selector.items()):
                return pool.policy
        return self

    def entry(self, check: str, code: str) -> tuple[str, Entry, bool]:
        """Return (its name as CHECK/CODE, what the code means, whether it is known).

        A code that is not there means what its beginning means, up to a slash: `145/fatal/X/0x2` may be `145/fatal`.
        """
        codes = self.codes.get(check)
        if codes is None:
            return UNKNOWN_CODE, self.unknown, False
        beginning = code
        while beginning:
            if beginning in codes and beginning != UNKNOWN_CODE:
                return f"{check}/{beginning}", codes[beginning], True
            beginning = beginning.rpartition("/")[0]
        if UNKNOWN_CODE in codes:
            return f"{check}/{UNKNOWN_CODE}", codes[UNKNOWN_CODE], False
        return UNKNOWN_CODE, self.unknown, False


def is_one_of(code: str, wanted: tuple[str, ...]) -> bool:
    """Whether a code is one of these, or says more than one of them after a slash."""
    return code in wanted or ("/" in code and any(code.startswith(f"{each}/") for each in wanted))
