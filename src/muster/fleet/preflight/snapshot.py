"""The input of decide: nodes and their records, existing tests, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from muster.api.preflight import PreflightSpec
from muster.api.trust import Doubt, Identity, doubt, driver, tested
from muster.fleet.nodes.node import FleetNode
from muster.fleet.preflight.config import PreflightConfig

NONE: Final[Mapping[str, Any]] = MappingProxyType({})
AGENT_DRIVER: Final = "agent_driver"
"""Key in a record's versions: the driver that the node's agent reported when the node was tested."""


class PreflightNode(FleetNode, frozen=True, kw_only=True):
    """A node in the form that preflight uses.

    Attributes:
        gpus: how many a test can get; also 0 if the device plugin has not announced them yet.
        has_gpus: it has GPUs, by what its device plugin announces or by its labels.
        pending: it has the taint of preflight.
        held: why no test may run there now; "" if one may.
        busy: other pods use its GPUs.
        promised: a gang has a slot there. While the node is not trusted, the gang waits for the test.
        agent_driver: the driver that its agent reports in this boot; "" if not known.
        suspicion: how much evidence against it there is since its test (suspicion.py).
        record: its newest test record, of any node of that name; None without one.
        wanted_since: a test that ends after this ends the quarantine. Infinite if work on the node comes first; None if
            no test is needed.
        wanted_level: the level that this test needs by the policy; 0 if not known.
        found_at: when its agent last found something, seconds since the epoch.
    """

    gpus: int = 0
    has_gpus: bool = False
    pending: bool = False
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
    def identity(self) -> Identity:
        """A record must match it to be about this node."""
        return Identity(self.uid, self.boot_id, driver(self.labels))

    @property
    def doubt(self) -> Doubt:
        """The reason why it is not trusted."""
        return doubt(self.identity, tested(self.record) if self.record is not None else None)

    @property
    def boot_record(self) -> PreflightSpec | None:
        """The record, if it is of this node in this boot. It may be revoked."""
        record, own = self.record, self.identity
        if record is None or (record.node_uid, record.boot_id) != (own.node_uid, own.boot_id):
            return None
        return record

    @property
    def own_record(self) -> PreflightSpec | None:
        """The record, if it is of this node in this boot and is not revoked."""
        record = self.boot_record
        return record if record is not None and record.revoked_time is None else None


class End(msgspec.Struct, frozen=True):
    """The end of a test's pod: its record, or why there is none."""

    record: PreflightSpec | None
    why: str = ""


class TestView(msgspec.Struct, frozen=True, kw_only=True):
    """The pod of a test.

    Attributes:
        identity: the node's identity when the pod was created.
        retest: it tests an idle node, and is preempted for work.
        made_at, started_at: seconds since the epoch; 0 if it has not started.
        bound: it is bound to its node.
        leaving: it is being deleted.
        made_with: identifies the configuration of its creation (`testpod.made_with`); "" if not known.
        end: how it ended; None while it runs.
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
    """Tests of a node that ended without a result: the node and boot, their number, and when the next may begin.

    They count only for the configuration `made_with`: after a change, the next test begins at once.
    """

    identity: Identity
    count: int
    not_before: float
    made_with: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """The API server refuses tests: the reason, the number of refusals in a row, and when to retry."""

    why: str
    count: int
    not_before: float
    made_with: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The input of decide.

    Attributes:
        config: None without a configuration: no test is begun then.
        nodes: by name.
        tests: by name.
        attempts: by node, from the previous plan.
        refused: None if tests can be created, as far as is known.
        wanted_within_h: the shortest age of a test that a waiting pod requires, in hours; 0 if none does.
    """

    config: PreflightConfig | None
    nodes: Mapping[str, PreflightNode] = NONE
    tests: Mapping[str, TestView] = NONE
    attempts: Mapping[str, Attempts] = NONE
    refused: Refusal | None = None
    wanted_within_h: int = 0
