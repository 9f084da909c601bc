"""The health policy in memory: the action for each code, rules over several findings, and exceptions for pools.

`policytext` reads it; the default is `catalogue.yaml`, beside this file. docs/health.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

Action = Literal["none", "observe", "condition", "quarantine", "drain", "reset-gpu", "reboot", "replace", "human"]
"""Actions on a node, mildest first: the ladder of remediation."""
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
RANK: Final[Mapping[Action, int]] = {action: rank for rank, action in enumerate(ACTIONS)}

Job = Literal["", "restart-app"]
"""The action on the job that runs there, in addition to the node's action."""
Fault = Literal["unknown", "application", "software", "hardware"]
"""Who is at fault. Of two equally serious reasons, the later one in this list wins."""
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

ELSEWHERE: Final = ("nvidia", "nvidiaThen", "eks", "gpud", "azure")
"""The vendors and projects whose advice is shown beside ours."""

DAY_S: Final = 86400.0

UNKNOWN_CODE: Final = "unknown"
"""The entry for codes that a check does not list."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of one code of one check."""

    what: str
    action: Action
    fault: Fault
    where: str
    """FILE:LINE that set the action."""
    job: Job = ""
    fatal: bool = False
    """Whether it counts in rules that count fatal codes."""
    test: int = 0
    """The preflight level that the node must pass to be trusted again; 0: the usual one."""
    keep_s: float = DAY_S
    """How long it counts after it was last seen, in seconds."""
    elsewhere: Mapping[str, str] = {}
    """By the names in ELSEWHERE; a name without advice is left out."""


class Beside(msgspec.Struct, frozen=True):
    """Another finding that must have been seen at about the same time."""

    seconds: float
    component: Literal["same", "other"]
    codes: tuple[str, ...]
    """Its codes; empty for any code that the rule itself does not cover."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule over several findings. All conditions that are set must hold."""

    name: str
    why: str
    action: Action
    fault: Fault
    within_s: float
    where: str
    """FILE:LINE that set the action."""
    check: str = ""
    codes: tuple[str, ...] = ()
    """Empty for any code of the check."""
    fatal: bool = False
    """Whether only fatal codes count."""
    per: Literal["component", "node"] = "component"
    incidents: int = 1
    events: int = 1
    components: int = 1
    """Minimum numbers: of findings, of their counts in total, and of different components."""
    remediations: int = 0
    """After this many remediations of the node, this action replaces the next remediation."""
    beside: Beside | None = None
    excuses: tuple[str, ...] = ()
    """Rules, or entries as CHECK/CODE, for which the findings that this rule explains do not count."""
    job: Job = ""
    test: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with their own policy."""

    name: str
    node_selector: Mapping[str, str]
    policy: Policy


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The actions for findings."""

    revision: str
    """Names the policy that decided, for people and reports."""
    codes: Mapping[str, Mapping[str, Entry]]
    """By check, then code."""
    unknown: Entry
    """For a check that the policy does not list: the agent is newer than the policy."""
    rules: tuple[Rule, ...]
    pools: tuple[Pool, ...] = ()

    def of_node(self, labels: Mapping[str, str]) -> Policy:
        """Return the policy for a node with these labels: of the first pool that selects it, or this one."""
        for pool in self.pools:
            if all(labels.get(key) == value for key, value in pool.node_selector.items()):
                return pool.policy
        return self

    def entry(self, check: str, code: str) -> tuple[str, Entry, bool]:
        """Return (its name as CHECK/CODE, what the code means, whether it is known).

        An unknown code has the meaning of its prefix up to a slash: `145/fatal/X/0x2` may be `145/fatal`.
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
    """Return whether a code is one of these, or one of them with more detail after a slash."""
    return code in wanted or ("/" in code and any(code.startswith(f"{each}/") for each in wanted))
