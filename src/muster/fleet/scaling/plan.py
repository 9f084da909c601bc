"""The scaling plan: actions and results, as data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from muster.fleet.scaling.snapshot import PoolMemory
from muster.fleet.scaling.states import Tracked


class SetSize(msgspec.Struct, frozen=True):
    """Set the pool's size at the provider; repeating it changes nothing. `gangs`: for which gangs."""

    pool: str
    size: int
    before: int
    why: str
    gangs: tuple[str, ...] = ()


class Cordon(msgspec.Struct, frozen=True):
    """Cordon the node, with our record."""

    pool: str
    instance: str
    node: str
    uid: str
    why: str


class Uncordon(msgspec.Struct, frozen=True):
    """Undo our cordon."""

    pool: str
    node: str
    uid: str
    why: str


class Delete(msgspec.Struct, frozen=True):
    """Delete the instance. With `replace`, keep the pool's size, so that the provider creates another instance.

    `node` and `uid` identify its Node object; "" without one. Before the deletion, the executor checks at the API
    server that no pod or slot needs the node.
    """

    pool: str
    instance: str
    node: str
    uid: str
    why: str
    replace: bool = False


class ForgetNode(msgspec.Struct, frozen=True):
    """Delete the Node object of an instance that we deleted and that no longer exists."""

    pool: str
    node: str
    uid: str


Action = SetSize | Cordon | Uncordon | Delete | ForgetNode


class Outcome(StrEnum):
    """The outcome for a gang. Values are reasons of Events and in metrics: never rename one."""

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
    """The outcome for a gang's demand, with a sentence."""

    outcome: Outcome
    message: str


class Plan(msgspec.Struct, frozen=True):
    """The actions to take now, and what to remember.

    Attributes:
        actions: in the order of execution.
        tracked, memory: input of the next decide.
        answers: by gang key.
        requested: by pool, instances that the provider still owes.
        wake_at: when to decide again at the latest, in seconds since the epoch; None if time alone changes nothing.
    """

    actions: tuple[Action, ...]
    tracked: Mapping[str, Tracked]
    memory: Mapping[str, PoolMemory]
    answers: Mapping[str, Answer]
    requested: Mapping[str, int]
    wake_at: float | None = None
