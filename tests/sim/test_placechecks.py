"""Issue 11 (simulations): checkers of placements and binds know what a leader could not know yet, and no more."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from fuzz.checks import NoRoomGivenTwice, NothingWhereItDoesNotFit, Violated
from fuzz.gangchecks import NoSlotLost
from fuzz.health.trust import TrustView
from fuzz.view import View
from muster.api.names import TAINT_PREFLIGHT
from muster.embedded.objects import Obj
from muster.embedded.store import Store
from muster.sim.virtual.network import Trace

STALE_S = 10.0
PENDING = {"key": TAINT_PREFLIGHT, "value": "pending", "effect": "NoSchedule"}


class Stage:
    """A store, and a view of it at a time that the test sets."""

    def __init__(self, kind: type[View]) -> None:
        self.now = 0.0
        self.store = Store()
        self.view = kind(self.store, lambda: self.now, _raise)
        self.view.begin()

    def node(self, taints: list[Obj] | None = None) -> None:
        status = {
            "allocatable": {"nvidia.com/gpu": "8", "pods": "9"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": "boot"},
        }
        node = {"metadata": {"name": "n", "uid": "n-uid"}, "spec": {"taints": taints or []}, "status": status}
        self.store.put("nodes", "n", node)

    def tested(self, *, boot_id: str = "boot") -> None:
        spec = {"passed": True, "nodeUID": "n-uid", "bootID": boot_id}
        self.store.put("preflights.muster.dev", "n", {"metadata": {"name": "n", "uid": "t"}, "spec": spec})

    def job(self, name: str, created: str, resumed: str = "") -> None:
        meta = {"name": name, "namespace": "default", "uid": f"{name}-uid", "creationTimestamp": created}
        suspended = {"type": "Suspended", "status": "False", "lastTransitionTime": resumed}
        status = {"phase": "Running", "conditions": [suspended] if resumed else []}
        self.store.put("trainingjobs.muster.dev", f"default/{name}", {"metadata": meta, "spec": {}, "status": status})

    def pod(self, gang: str, created: str, node: str = "", *, leaves: bool = False, gpus: int = 8) -> None:
        meta: Obj = {
            "name": f"{gang}-0",
            "namespace": "default",
            "uid": f"{gang}-0-uid",
            "creationTimestamp": created,
            "labels": {"muster.dev/gang": gang, "muster.dev/slot": "0"},
            "annotations": {"muster.dev/gang-uid": f"{gang}-uid"},
        }
        if leaves:
            meta["deletionTimestamp"] = created
        spec = {"containers": [{"name": "worker", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}]}
        pod = {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {}), "status": {}}
        self.store.put("pods", f"default/{gang}-0", pod)

    def place(self, gang: str, phase: str = "Open", *, node: str = "n", preempting: bool = False) -> None:
        meta = {"name": gang, "namespace": "default", "uid": f"{gang}-placement"}
        slots = [{"slot": 0, "node": node, "nodeUID": f"{node}-uid"}]
        spec = {"gang": gang, "gangUID": f"{gang}-uid", "size": 1, "slots": slots, "preempting": preempting}
        self.store.put(
            "placements.muster.dev", f"default/{gang}", {"metadata": meta, "spec": spec, "status": {"phase": phase}}
        )


def _raise(error: BaseException) -> None:
    raise error


def stage_of_a_missed_taint(**record: str) -> Stage:
    """The scheduler's watch of nodes missed the taint, and the one of records did not miss the pass."""
    stage = Stage(TrustView)
    NothingWhereItDoesNotFit(stage.view, STALE_S)
    stage.node()
    stage.now = 2.0
    stage.node([PENDING])
    stage.now = 6.0
    stage.tested(**record)
    stage.pod("job", "2027-01-15T08:00:00Z")
    return stage


def test_bind_by_an_old_node_and_a_new_record_is_allowed() -> None:
    stage = stage_of_a_missed_taint()
    stage.now = 11.0
    stage.pod("job", "2027-01-15T08:00:00Z", "n")


def test_bind_to_a_node_with_a_known_taint_is_a_violation() -> None:
    stage = stage_of_a_missed_taint()
    stage.now = 12.1
    with pytest.raises(Violated, match=r"taint muster\.dev/preflight is not tolerated"):
        stage.pod("job", "2027-01-15T08:00:00Z", "n")


def test_bind_to_a_node_tested_in_an_earlier_boot_is_a_violation() -> None:
    stage = stage_of_a_missed_taint(boot_id="before")
    stage.now = 7.0
    with pytest.raises(Violated, match=r"taint muster\.dev/preflight is not tolerated"):
        stage.pod("job", "2027-01-15T08:00:00Z", "n")


def one_runs_where_another_wants_to(resumed: str) -> Stage:
    """The job `early` was created at 08:00 and runs on the node; `late` came at 08:05."""
    stage = Stage(View)
    NoRoomGivenTwice(stage.view, STALE_S)
    stage.node()
    stage.job("early", "2027-01-15T08:00:00Z", resumed)
    stage.pod("early", "2027-01-15T08:06:00Z", "n")
    stage.place("early")
    stage.job("late", "2027-01-15T08:05:00Z")
    stage.pod("late", "2027-01-15T08:05:00Z")
    return stage


def test_job_that_was_resumed_makes_way_for_one_that_came_before_that() -> None:
    one_runs_where_another_wants_to("2027-01-15T08:06:00Z").place("late")


@pytest.mark.parametrize("resumed", ["", "2027-01-15T08:04:00Z"])
def test_node_of_an_earlier_job_given_away_is_a_violation(resumed: str) -> None:
    with pytest.raises(Violated, match="last came the placement of late"):
        one_runs_where_another_wants_to(resumed).place("late")


def test_placement_deleted_by_hand_may_come_back_for_pods_that_run() -> None:
    """Base seed 990108: a user deleted the Placement of a gang that was asked to leave its node for another."""
    stage = one_runs_where_another_wants_to("2027-01-15T08:06:00Z")
    stage.place("late")
    with stage.view.by_hand():
        stage.store.delete("placements.muster.dev", "default/early")
    stage.place("early")


@pytest.mark.parametrize("by_hand", [True, False])
def test_only_users_take_the_placement_of_a_leaving_gang_away_while_it_runs(by_hand: bool) -> None:
    stage = Stage(View)
    NoSlotLost(stage.view, Trace(), STALE_S, 0.0)
    stage.node()
    stage.job("early", "2027-01-15T08:00:00Z")
    stage.pod("early", "2027-01-15T08:06:00Z", "n")
    stage.place("early", "Preempting")
    with (
        stage.view.by_hand() if by_hand else nullcontext(),
        nullcontext() if by_hand else pytest.raises(Violated, match="which is being preempted"),
    ):
        stage.store.delete("placements.muster.dev", "default/early")


@pytest.mark.parametrize("leaves", [True, False])
def test_gang_whose_pods_have_all_left_or_leave_may_give_its_placement_back(leaves: bool) -> None:
    """Health seed 990844: a gang lost all its nodes at once, and one old pod still had its grace."""
    stage = Stage(View)
    NoSlotLost(stage.view, Trace(), STALE_S, 30.0)
    stage.node()
    stage.job("early", "2027-01-15T08:00:00Z")
    stage.pod("early", "2027-01-15T08:06:00Z", "n", leaves=leaves)
    stage.place("early")
    with nullcontext() if leaves else pytest.raises(Violated, match="went while its job is Running"):
        stage.store.delete("placements.muster.dev", "default/early")


def one_waits_for_a_pod_where_another_wants_to(*, taker: str = "early", gpus: int = 8) -> Stage:
    """Both jobs restart; the slot of `late` or `early` is on the node that the other, the taker, plans to take.

    Each needs `gpus` of the node's 8 GPUs.
    """
    stage = Stage(View)
    NoSlotLost(stage.view, Trace(), STALE_S, 30.0)
    stage.node()
    for name, created in (("early", "2027-01-15T08:00:00Z"), ("late", "2027-01-15T08:05:00Z")):
        stage.job(name, created)
        stage.pod(name, created, gpus=gpus)
    stage.place("late" if taker == "early" else "early")
    stage.now = 60.0
    stage.place(taker, preempting=True)
    return stage


@pytest.mark.parametrize("taken_s", [0.0, STALE_S])
def test_slot_may_move_from_a_node_that_a_gang_with_more_right_takes(taken_s: float) -> None:
    """Fleet seed 990525: the plan to preempt was written, and the preempted gang found another node for its slot."""
    stage = one_waits_for_a_pod_where_another_wants_to()
    stage.now = 90.0
    if taken_s:
        stage.place("early")  # the node is free
        stage.now += taken_s
    stage.place("late", node="other")


def test_slot_moved_long_after_a_plan_to_preempt_has_ended_is_a_violation() -> None:
    stage = one_waits_for_a_pod_where_another_wants_to()
    stage.place("early", node="other")
    stage.now += STALE_S + 0.1
    with pytest.raises(Violated, match="slot 0 of late was moved from n to other, though n serves"):
        stage.place("late", node="other")


def test_slot_moved_from_a_node_that_a_later_gang_plans_to_take_is_a_violation() -> None:
    stage = one_waits_for_a_pod_where_another_wants_to(taker="late")
    with pytest.raises(Violated, match="slot 0 of early was moved from n to other, though n serves"):
        stage.place("early", node="other")


def test_slot_of_a_pod_that_runs_is_not_moved_for_a_gang_with_more_right() -> None:
    stage = one_waits_for_a_pod_where_another_wants_to()
    stage.pod("late", "2027-01-15T08:05:00Z", "n")
    with pytest.raises(Violated, match="slot 0 of late was moved from n to other, though n serves"):
        stage.place("late", node="other")


def test_slot_moved_from_a_node_with_room_for_both_gangs_is_a_violation() -> None:
    stage = one_waits_for_a_pod_where_another_wants_to(gpus=4)
    with pytest.raises(Violated, match="slot 0 of late was moved from n to other, though n serves"):
        stage.place("late", node="other")


@pytest.mark.parametrize(("came", "allowed"), [("2027-01-15T07:55:00Z", True), ("2027-01-15T08:02:00Z", False)])
def test_slot_that_waits_for_a_pod_to_leave_takes_no_room_beside_it(came: str, allowed: bool) -> None:
    """Base seed 153: a gang was bound again to its slot, while another one left the node for a third."""
    stage = Stage(View)
    NoRoomGivenTwice(stage.view, STALE_S)
    stage.node()
    for gang, created in (("early", "2027-01-15T08:00:00Z"), ("late", "2027-01-15T08:05:00Z")):
        stage.pod(gang, created, gpus=4)
        stage.place(gang)
    stage.pod("early", "2027-01-15T08:00:00Z", "n", gpus=4)
    stage.pod("taker", came, gpus=4)
    stage.place("taker", preempting=True)
    with nullcontext() if allowed else pytest.raises(Violated, match="last came late-0"):
        stage.pod("late", "2027-01-15T08:05:00Z", "n", gpus=4)
