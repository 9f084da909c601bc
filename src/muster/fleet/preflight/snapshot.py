"""What is decided by: nodes and their records, tests that run, and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from muster.api.preflight import PreflightSpec
from muster.api.trust import Doubt, Identity, doubt, tested
from muster.fleet.preflight.config import PreflightConfig

NONE: Final[Mapping[str, Any]] = MappingProxyType({})
AGENT_DRIVER: Final = "agent_driver"
"""Among a record's versions: the driver that the node's agent saw when it was tested."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Attributes:
        identity: what a record has to be of to be about it.
        made_at: when its Node object was made, seconds since the epoch.
        gpus: that can be given to a test; 0 also where its device plugin has not announced them yet.
        has_gpus: it is known to have some.
        ignored: it has the label that opts out.
        pending: it has the taint of preflight.
        quarantined: it has a taint of quarantine, whoever put it there.
        held: why no test may run there now; empty where one may.
        busy: somebody else uses its GPUs.
        promised: a gang has a slot there. Where the node is in doubt that one waits for the test.
        agent_driver: the driver that its agent sees in this boot; empty where nobody says.
        suspicion: how much speaks against it since its test (suspicion.py).
        record: of its newest test, whoever's that was; None without.
        wanted_since: it leaves quarantine with a test that ends after this: infinite where something has to be done
            to it before; None where nothing waits for a test.
        wanted_level: of that test, as the policy says of what led into quarantine; 0 where it does not.
        found_at: when its agent found something last, seconds since the epoch.
    """

    name: str
    identity: Identity
    made_at: float = 0.0
    gpus: int = 0
    has_gpus: bool = False
    ignored: bool = False
    pending: bool = False
    quarantined: bool = False
    held: str = ""
    busy: bool = False
    promised: bool = False
    agent_driver: str = ""
    suspicion: float = 0.0
    record: PreflightSpec | None = None
    wanted_since: float | None = None
    wanted_level: int = 0
    found_at: float = 0.0

    @property
    def doubt(self) -> Doubt:
        """Why it is not trusted."""
        return doubt(self.identity, tested(self.record) if self.record is not None else None)

    @property
    def boot_record(self) -> PreflightSpec | None:
        """The record, where it is of this node in this boot. It may be revoked."""
        record, own = self.record, self.identity
        if record is None or (record.node_uid, record.boot_id) != (own.node_uid, own.boot_id):
            return None
        return record

    @property
    def own_record(self) -> PreflightSpec | None:
        """The record, where it is of this node in this boot and is not revoked."""
        record = self.boot_record
        return record if record is not None and record.revoked_time is None else None


class End(msgspec.Struct, frozen=True):
    """How a test's pod ended: with a record, or without one and why."""

    record: PreflightSpec | None
    why: str = ""


class TestView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that tests a node.

    Attributes:
        identity: of the node, when the pod was made.
        retest: it leaves at once for work.
        made_at, started_at: seconds since the epoch; 0 where it has not started.
        bound: it has its node.
        leaving: it is being deleted.
        made_with: of the configuration that it was made with (`testpod.made_with`); "" where that is unknown.
        end: how it ended; None while it has not.
    """

    name: str
    uid: str
    node: str
    identity: Identity
    level: int
    retest: bool = False
    made_at: float = 0.0
    bound: bool = False
    started_at: float = 0.0
    leaving: bool = False
    made_with: str = ""
    end: End | None = None


class Attempts(msgspec.Struct, frozen=True):
    """Tests of a node that ended without a result: how many, of which node and boot, and when the next may begin.

    They count for the configuration they were `made_with`: with another one the next test begins at once.
    """

    identity: Identity
    count: int
    not_before: float
    made_with: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """The API server refuses to make tests: why, how often in a row, and when the next may be tried."""

    why: str
    count: int
    not_before: float
    made_with: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment.

    Attributes:
        config: None where nobody configured tests: none is begun then.
        nodes: by name.
        tests: by name.
        attempts: by node, as the plan before said.
        refused: None where tests can be made, as far as is known.
        wanted_within_h: the shortest time within which a pod that waits wants its node to have been tested; 0: none.
    """

    config: PreflightConfig | None
    nodes: Mapping[str, NodeView] = NONE
    tests: Mapping[str, TestView] = NONE
    attempts: Mapping[str, Attempts] = NONE
    refused: Refusal | None = None
    wanted_within_h: int = 0
