"""The preflight plan: actions that may each be executed twice without harm."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from muster.api.preflight import PreflightSpec
from muster.api.trust import Identity
from muster.fleet.preflight.snapshot import Attempts, TestView


class State(StrEnum):
    """The state of a node in preflight. Values are in metrics: never rename one."""

    NONE = "None"
    WAITING = "Waiting"
    TESTING = "Testing"
    TRUSTED = "Trusted"
    FAILED = "Failed"


class Start(msgspec.Struct, frozen=True):
    """Create the pod that tests a node."""

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
    """Delete the pod of a test. `inconclusive`: it ended without a result, and the reason is reported."""

    test: TestView
    why: str
    inconclusive: bool = False


class Revoke(msgspec.Struct, frozen=True):
    """Revoke the record, because the node has another driver now."""

    node: str
    record: PreflightSpec


class PutTaint(msgspec.Struct, frozen=True):
    """Put the taint on a node that is not trusted and not in use."""

    node: str


class TakeTaint(msgspec.Struct, frozen=True):
    """Remove the taint: the node may take work."""

    node: str


Action = Start | Accept | Remove | Revoke | PutTaint | TakeTaint


class Plan(msgspec.Struct, frozen=True):
    """The actions in order, the attempts to remember, the state of each node, and when to plan again at the latest."""

    actions: tuple[Action, ...] = ()
    attempts: Mapping[str, Attempts] = msgspec.field(default_factory=dict)
    states: Mapping[str, State] = msgspec.field(default_factory=dict)
    wake_at: float | None = None
