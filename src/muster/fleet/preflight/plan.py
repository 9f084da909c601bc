"""What decide wants done; each action may be carried out twice without harm."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from muster.api.preflight import PreflightSpec
from muster.api.trust import Identity
from muster.fleet.preflight.snapshot import Attempts, TestView


class State(StrEnum):
    """What a node is to preflight. Values are in metrics: never rename one."""

    NONE = "None"
    WAITING = "Waiting"
    TESTING = "Testing"
    TRUSTED = "Trusted"
    FAILED = "Failed"


class Start(msgspec.Struct, frozen=True):
    """Make the pod that tests a node."""

    node: str
    identity: Identity
    gpus: int
    level: int
    retest: bool = False


class Accept(msgspec.Struct, frozen=True):
    """Write the record of a test, then delete its pod."""

    test: TestView
    record: PreflightSpec


class Remove(msgspec.Struct, frozen=True):
    """Delete the pod of a test. `inconclusive`: it ended without a result, and why is to be said."""

    test: TestView
    why: str
    inconclusive: bool = False


class Revoke(msgspec.Struct, frozen=True):
    """Delete the record: the node has another driver since."""

    node: str
    record: PreflightSpec


class PutTaint(msgspec.Struct, frozen=True):
    """The node is not trusted and nobody uses it: say so to everybody."""

    node: str


class TakeTaint(msgspec.Struct, frozen=True):
    """The node may have work."""

    node: str


Action = Start | Accept | Remove | Revoke | PutTaint | TakeTaint


class Plan(msgspec.Struct, frozen=True):
    """What to do, in order; what to remember; what each node is; when to look again though nothing changes."""

    actions: tuple[Action, ...] = ()
    attempts: Mapping[str, Attempts] = msgspec.field(default_factory=dict)
    states: Mapping[str, State] = msgspec.field(default_factory=dict)
    wake_at: float | None = None
