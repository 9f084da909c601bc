"""Plans as data: the actions that decide returns. The controller executes these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.placement import LeavingReason, Placement
from muster.api.scheduling import BackfillPolicy, QueueOrder
from muster.scheduler.memo import EMPTY, Memo
from muster.scheduler.preemption.searches import FailedSearch
from muster.scheduler.queue.backfill import Start
from muster.scheduler.queue.demand import Demand
from muster.scheduler.reasons import Reason


class Settings(msgspec.Struct, frozen=True):
    """Settings of the scheduler; times are in seconds.

    Attributes:
        bind_deadline_s: a gang that is not fully bound within this time is released.
        hold_s: how long slots of a gang without live pods stay reserved.
        leave_slack_s: if a gang's controller does not react, its pods are deleted this long after its grace.
        team_key: label of nodes and pods that names their team, and key of the taint of nodes.
        preflight_required: nodes with GPUs are used only after they passed their tests (docs/preflight.md).
        policy: which gangs may start on nodes that are reserved for a gang before them.
        pool_policies: policies of pools that have their own, by the value of the label muster.dev/pool.
        backfill_delay_s: a gang starts at most this long, and the longest grace of backfilled gangs, after the nodes
            that are reserved for it would have been free without backfill.
        backfill_min_run_s: a backfilled gang runs at least this long before it is asked to leave.
        backfill_asks_max: gangs that were asked to leave this often are the first to be backfilled again.
        order: how gangs of the same priority are ordered (queue/fair.py). `decide` reads only the resulting order.
        usage_half_life_s: usage of the past counts half as much after this time.
        fair_wait_max_s: a user whose gangs waited this long without a start goes first.
    """

    bind_deadline_s: float = 30.0
    hold_s: float = 600.0
    leave_slack_s: float = 30.0
    team_key: str = LABEL_TEAM
    preflight_required: bool = False
    policy: BackfillPolicy = "preemptible"
    pool_policies: Mapping[str, BackfillPolicy] = {}
    backfill_delay_s: float = 120.0
    backfill_min_run_s: float = 60.0
    backfill_asks_max: int = 3
    order: QueueOrder = "arrival"
    usage_half_life_s: float = 86_400.0
    fair_wait_max_s: float = 86_400.0

    def policy_of(self, pool: str) -> BackfillPolicy:
        """Return the policy of the nodes with this pool label; "" for nodes without one."""
        return self.pool_policies.get(pool, self.policy)


class WritePlacement(msgspec.Struct, frozen=True):
    """Create the placement, or replace it under its resourceVersion. `reason` is what changed; "" for a new one."""

    gang: str
    placement: Placement
    reason: str = ""

    @property
    def create(self) -> bool:
        """Whether the placement does not exist yet."""
        return not self.placement.metadata.resource_version


class DeletePlacement(msgspec.Struct, frozen=True):
    """Delete the placement if it still has this version."""

    gang: str
    placement: Placement
    reason: str


class MarkBound(msgspec.Struct, frozen=True):
    """Mark the placement Bound, because the whole gang is bound."""

    gang: str
    placement: Placement


class ReleaseGang(msgspec.Struct, frozen=True):
    """Write phase Released, because the gang was not bound in time. A new leader then continues the release."""

    gang: str
    placement: Placement
    reason: str


class TellToLeave(msgspec.Struct, frozen=True):
    """Ask a gang to return its nodes: write phase Preempting; its controller saves and deletes its pods."""

    gang: str
    placement: Placement
    reason: LeavingReason
    message: str


class RemoveMember(msgspec.Struct, frozen=True):
    """Mark the bound pod as disrupted and delete it, by UID; its owner recreates it.

    `why` is the reason of its DisruptionTarget condition.
    """

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: str
    why: str = "GangNotBound"


class TryEviction(msgspec.Struct, frozen=True):
    """Dry-run the eviction of all these pods, (name, UID); `by` is the gang that would preempt them."""

    gang: str
    namespace: str
    pods: tuple[tuple[str, str], ...]
    by: str


class EvictMember(msgspec.Struct, frozen=True):
    """Evict the pod, by UID, within its disruption budget; its owner recreates it. `reason` is for display."""

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: str


class StayOn(msgspec.Struct, frozen=True):
    """Write phase Bound again: not all pods of the gang could leave. It keeps its slots and is repaired."""

    gang: str
    placement: Placement
    reason: str


class Bind(msgspec.Struct, frozen=True):
    """Bind the pod, by UID. `slot` is -1 for a pod outside placed gangs.

    `backfilled_for`: the gang for which the node is reserved, if a pod outside placed gangs is backfilled; else "".
    """

    gang: str
    namespace: str
    pod: str
    uid: str
    node: str
    slot: int = -1
    backfilled_for: str = ""


class Refuse(msgspec.Struct, frozen=True):
    """Report on a pod that it can never be placed as it is: PodScheduled False with this reason."""

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: Reason


Action = (
    WritePlacement
    | DeletePlacement
    | MarkBound
    | ReleaseGang
    | TellToLeave
    | StayOn
    | RemoveMember
    | TryEviction
    | EvictMember
    | Bind
    | Refuse
)


class Plan(msgspec.Struct, frozen=True):
    """All actions and reasons of one decision.

    Attributes:
        waiting: why each considered gang waits, by key.
        unreported: number of gangs behind these that were only counted.
        wake_at: time of the next plan if no event comes first; None if only events matter.
        starts: when waiting gangs start, by key; unknown for gangs that are missing here.
        demands: conditions for cluster autoscalers.
        searches: this plan's failed searches for victims, for `ClusterState.searched`; None: search again at once.
        delayed: keys of gangs that would start now if no gang were backfilled on their nodes.
        memo: argument of the next call of `decide`, to save work.
    """

    actions: tuple[Action, ...] = ()
    waiting: Mapping[str, Reason] = {}
    unreported: int = 0
    wake_at: float | None = None
    starts: Mapping[str, Start] = {}
    demands: tuple[Demand, ...] = ()
    searches: Mapping[str, FailedSearch | None] = {}
    delayed: tuple[str, ...] = ()
    memo: Memo = EMPTY
