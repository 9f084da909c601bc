"""Plan of the teams controller: nodes that change hands, warnings, and the standing of each team."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from muster.kube.objects.taints import NodeChange
from muster.teams.record import TeamRecord, change_of


class Why(StrEnum):
    """Reason for a write or a warning."""

    ALLOCATED = "Allocated"
    RELEASED = "Released"
    REPLACES = "ReplacesBroken"
    BROKEN = "Broken"
    LEFT_POOL = "LeftPool"
    RESTORED = "Restored"
    OVER_ASKED = "OverAsked"
    SHORT = "BrokenShared"
    BY_HAND = "SetByHand"
    UNKNOWN_TEAM = "UnknownTeam"
    NO_ALLOCATIONS = "NoAllocations"
    DELETED = "ConfigDeleted"
    INVALID = "ConfigInvalid"


class Change(msgspec.Struct, frozen=True):
    """One node to write.

    Attributes:
        node: name of the node.
        uid: UID of the node, so that a new node of the same name is not written.
        previous: its present owner.
        why: typed reason.
        record: its new record; `record.why` is for display.
        former_key: key of its present label and taint.
    """

    node: str
    uid: str
    previous: str
    why: Why
    record: TeamRecord
    former_key: str = ""

    def write(self) -> NodeChange:
        """Return the change to write to the node."""
        return change_of(self.record, self.former_key)


class Caution(msgspec.Struct, frozen=True):
    """A warning about one pool, or ("") about all."""

    why: Why
    message: str
    pool: str = ""


class Standing(msgspec.Struct, frozen=True, rename="camel"):
    """Standing of a team in a pool, in nodes, before the plan is executed.

    Attributes:
        team: the team; "" is the rest.
        pool: the pool's selector.
        asked: the amount as written in the ConfigMap; "" without one.
        entitled: its share, reduced if the pool is too small.
        owned, healthy: nodes it owns, and those that are usable.
        used, lent, borrowed: as in `api.lending.TeamNodes`.
        pending: nodes it still waits for, because gangs run there.
        by_hand: owned nodes that were labelled by hand.
    """

    team: str
    pool: str
    asked: str = ""
    entitled: int = 0
    owned: int = 0
    healthy: int = 0
    used: int = 0
    lent: int = 0
    borrowed: int = 0
    pending: int = 0
    by_hand: int = 0


class Plan(msgspec.Struct, frozen=True):
    """Writes and reports of one decision.

    Attributes:
        changes: writes, in order.
        cautions: warnings.
        standings: of every team in every pool.
        leaving: nodes that change hands now or after their gangs end; the old owner starts nothing new there.
    """

    changes: tuple[Change, ...] = ()
    cautions: tuple[Caution, ...] = ()
    standings: tuple[Standing, ...] = ()
    leaving: frozenset[str] = frozenset()
