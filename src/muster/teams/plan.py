"""What decide answers: nodes that change hands, what people should know, and how each team stands."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from muster.kube.taintwriter import NodeChange
from muster.teams.record import TeamRecord, change_of


class Why(StrEnum):
    """Why a node is written, or what is wrong."""

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
        node: its name.
        uid: of that node, not of another by its name.
        previous: whose it is now.
        why: for machines.
        record: what it is to say afterwards; `record.why` is for people.
        former_key: of the label and taint that it has now.
    """

    node: str
    uid: str
    previous: str
    why: Why
    record: TeamRecord
    former_key: str = ""

    def write(self) -> NodeChange:
        """What to write."""
        return change_of(self.record, self.former_key)


class Caution(msgspec.Struct, frozen=True):
    """Something people should know, about one pool or ("") about all."""

    why: Why
    message: str
    pool: str = ""


class Standing(msgspec.Struct, frozen=True, rename="camel"):
    """How one team stands in one pool, in nodes, before the plan is carried out.

    Attributes:
        team: the team; "" is the rest.
        pool: the pool's selector.
        asked: what the ConfigMap says, as it is written there; "" where it says nothing.
        entitled: what it is to own, cut where there are not enough.
        owned, healthy: what it owns, and how much of that is of use.
        used, lent, borrowed: as in `api.lending.TeamNodes`.
        pending: what it still waits for, as gangs run there.
        by_hand: owned, since somebody labelled them by hand.
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
    """What is to be written, and what is to be known.

    Attributes:
        changes: in the order in which to make them.
        cautions: what people should know.
        standings: of every team in every pool.
        leaving: nodes that change hands now or once what is on them has ended: their owner starts nothing new there.
    """

    changes: tuple[Change, ...] = ()
    cautions: tuple[Caution, ...] = ()
    standings: tuple[Standing, ...] = ()
    leaving: frozenset[str] = frozenset()
