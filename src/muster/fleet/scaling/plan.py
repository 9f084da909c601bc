"""What decide wants done and what it found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from muster.fleet.scaling.snapshot import PoolMemory
from muster.fleet.scaling.states import Tracked


class SetSize(msgspec.Struct, frozen=True):
    """Have the provider keep so many instances; asking again changes nothing. `gangs`: for whom."""

    pool: str
    size: int
    before: int
    why: str
    gangs: tuple[str, ...] = ()


class Cordon(msgspec.Struct, frozen=True):
    """Keep pods away from the node, in our name."""

    pool: str
    instance: str
    node: str
    uid: str
    why: str


class Uncordon(msgspec.Struct, frozen=True):
    """Take our cordon back."""

    pool: str
    node: str
    uid: str
    why: str


class Delete(msgspec.Struct, frozen=True):
    """Delete the instance, and one of the pool's size unless `replace`: then the provider makes another, if any lacks.

    `node` and `uid` are its Node object's; "" where it has none. The shell looks once more, at the API server itself,
    whether nobody needs the node.
    """

    pool: str
    instance: str
    node: str
    uid: str
    why: str
    replace: bool = False


class ForgetNode(msgspec.Struct, frozen=True):
    """Delete the Node object of an instance that we deleted and that is gone."""

    pool: str
    node: str
    uid: str


Action = SetSize | Cordon | Uncordon | Delete | ForgetNode


class Outcome(StrEnum):
    """What scaling does for a gang. Values are reasons of Events and in metrics: never rename one."""

    COMING = "NodesComing"
    ADDED = "ScaleUp"
    NOT_APPROVED = "ScaleUpNotApproved"
    NO_POOL = "NoPoolServes"
    FULL = "PoolsFull"
    BEHIND = "ScaleUpBehind"
    BACKING_OFF = "ScaleUpBackingOff"
    PACED = "ScaleUpPaced"
    SETTLING = "ScaleUpSettling"


class Answer(msgspec.Struct, frozen=True):
    """What becomes of a gang's demand, in a sentence."""

    outcome: Outcome
    message: str


class Plan(msgspec.Struct, frozen=True):
    """What to do now.

    Attributes:
        actions: in the order in which to do them.
        tracked, memory: to be handed to the next decide.
        answers: by gang key.
        requested: instances that pools are owed, by pool.
        wake_at: decide again then at the latest, in seconds since the epoch; None where only time changes nothing.
    """

    actions: tuple[Action, ...]
    tracked: Mapping[str, Tracked]
    memory: Mapping[str, PoolMemory]
    answers: Mapping[str, Answer]
    requested: Mapping[str, int]
    wake_at: float | None = None
