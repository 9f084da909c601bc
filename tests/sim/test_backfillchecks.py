"""Issue 13: checkers of backfill report what must never happen, and nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from fuzz.backfill import Backfill
from fuzz.backfillchecks import FUTILE_MAX, BackfilledOnlyBehind, BackfilledOnlyIfAllowed, NoTradingPlaces
from fuzz.checks import Violated
from fuzz.view import View
from fuzz.waitchecks import LATEST_S, REACTS_S, NoReservedGangDelayed, NothingIdleWhileRestartableWaits
from muster.embedded.objects import Obj
from muster.embedded.store import Store
from muster.sim.virtual.network import Trace

STALE_S = 5.0
EARLY, LATE = "2027-01-15T08:00:00Z", "2027-01-15T08:05:00Z"
SETTINGS = Backfill(delay_s=20.0)
LIMIT_S = STALE_S + LATEST_S + REACTS_S


class Stage:
    """A store with one node and one-node gangs, and a view of it at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = Store()
        self.view = View(self.store, lambda: self.now, _raise)
        self.view.begin()
        status = {
            "allocatable": {"nvidia.com/gpu": "8", "pods": "9"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.store.put("nodes", "n", {"metadata": {"name": "n", "uid": "n-uid"}, "spec": {}, "status": status})
        self.now = 100.0  # the node has been there for some time

    def job(self, name: str, *, restartable: bool | None = True, **status: Any) -> None:
        meta = {"name": name, "namespace": "default", "uid": f"{name}-uid", "creationTimestamp": LATE}
        spec = {} if restartable is None else {"restartable": restartable}
        job = {"metadata": meta, "spec": spec, "status": {"phase": "Pending", **status}}
        self.store.put("trainingjobs.muster.dev", f"default/{name}", job)

    def pod(self, gang: str, created: str, node: str = "") -> None:
        meta: Obj = {
            "name": f"{gang}-0",
            "namespace": "default",
            "uid": f"{gang}-0-uid",
            "creationTimestamp": created,
            "labels": {"muster.dev/gang": gang, "muster.dev/slot": "0"},
            "annotations": {"muster.dev/gang-uid": f"{gang}-uid"},
        }
        spec = {"containers": [{"name": "worker", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
        pod = {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {}), "status": {}}
        self.store.put("pods", f"default/{gang}-0", pod)

    def place(self, gang: str, phase: str = "Bound", *, backfilled_for: str = "", preempting: bool = False) -> None:
        meta = {"name": gang, "namespace": "default", "uid": f"{gang}-placement"}
        slots = [{"slot": 0, "node": "n", "nodeUID": "n-uid"}]
        spec: Obj = {"gang": gang, "gangUID": f"{gang}-uid", "size": 1, "slots": slots, "preempting": preempting}
        if backfilled_for:
            spec["backfill"] = {"gang": f"default/{backfilled_for}", "gangUID": f"{backfilled_for}-uid"}
        status = {"phase": phase, "reason": "Backfilled"} if phase == "Preempting" else {"phase": phase}
        self.store.put("placements.muster.dev", f"default/{gang}", {"metadata": meta, "spec": spec, "status": status})

    def seconds(self, count: float) -> None:
        """Let time pass, and have all checkers look each second."""
        for _ in range(round(count)):
            self.now += 1.0
            for checker in self.view.checkers:
                checker.second()

    def backfilled(self) -> None:
        """The early gang waits, and the late one runs on its node."""
        self.job("late")
        self.pod("early", EARLY)
        self.pod("late", LATE)
        self.place("late", backfilled_for="early")
        self.pod("late", LATE, "n")


def _raise(error: BaseException) -> None:
    raise error


def test_backfill_behind_the_reserved_gang_is_allowed() -> None:
    stage = Stage()
    BackfilledOnlyBehind(stage.view, STALE_S)
    BackfilledOnlyIfAllowed(stage.view, STALE_S, SETTINGS)
    stage.backfilled()
    stage.place("early", "Open", preempting=True)
    stage.place("late", "Preempting", backfilled_for="early")


def test_backfill_for_a_later_gang_is_a_violation() -> None:
    stage = Stage()
    BackfilledOnlyBehind(stage.view, STALE_S)
    stage.pod("early", EARLY)
    stage.pod("late", LATE)
    with pytest.raises(Violated, match="early/early-uid was backfilled for late/late-uid, which comes after it"):
        stage.place("early", backfilled_for="late")


def test_request_to_leave_without_a_plan_for_the_nodes_is_a_violation() -> None:
    stage = Stage()
    BackfilledOnlyBehind(stage.view, STALE_S)
    stage.backfilled()
    stage.now += STALE_S + 1.0
    with pytest.raises(Violated, match="no gang has planned to use its nodes"):
        stage.place("late", "Preempting", backfilled_for="early")


def test_request_to_leave_after_the_plan_was_dropped_a_moment_ago_is_allowed() -> None:
    stage = Stage()
    BackfilledOnlyBehind(stage.view, STALE_S)
    stage.backfilled()
    stage.place("early", "Open", preempting=True)
    stage.now += 60.0
    stage.store.delete("placements.muster.dev", "default/early")
    stage.now += STALE_S - 1.0
    stage.place("late", "Preempting", backfilled_for="early")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"restartable": False, "lastCheckpoint": {"step": 3}}, "it says that it is not restartable"),
        ({"restartable": None}, "it has saved nothing, and no job has ended"),
    ],
)
def test_backfill_of_a_gang_that_would_lose_its_work_is_a_violation(job: dict[str, Any], why: str) -> None:
    stage = Stage()
    BackfilledOnlyIfAllowed(stage.view, STALE_S, SETTINGS)
    stage.job("late", **job)
    stage.pod("late", LATE)
    with pytest.raises(Violated, match=why):
        stage.place("late", backfilled_for="early")


def test_backfill_of_a_job_with_a_checkpoint_is_allowed() -> None:
    stage = Stage()
    BackfilledOnlyIfAllowed(stage.view, STALE_S, SETTINGS)
    stage.job("late", restartable=None, lastCheckpoint={"step": 3})
    stage.pod("late", LATE)
    stage.place("late", backfilled_for="early")


def test_backfill_with_the_policy_easy_is_a_violation() -> None:
    stage = Stage()
    BackfilledOnlyIfAllowed(stage.view, STALE_S, Backfill(policy="easy"))
    with pytest.raises(Violated, match="the policy is easy"):
        stage.backfilled()


def _asks(stage: Stage, times: int) -> None:
    for _ in range(times):
        stage.place("late", "Preempting", backfilled_for="early")
        stage.place("late", backfilled_for="early")


def test_gang_asked_again_and_again_for_one_that_never_starts_is_a_violation() -> None:
    stage = Stage()
    NoTradingPlaces(stage.view, STALE_S)
    stage.backfilled()
    stage.place("early", "Open", preempting=True)
    _asks(stage, FUTILE_MAX)
    with pytest.raises(Violated, match=r"late/late-uid was asked 6 times for early/early-uid, which never starts"):
        _asks(stage, 1)


def test_requests_for_a_gang_that_starts_each_time_are_allowed() -> None:
    stage = Stage()
    NoTradingPlaces(stage.view, STALE_S)
    stage.backfilled()
    for _ in range(2):
        stage.place("early", "Open", preempting=True)
        _asks(stage, FUTILE_MAX)
        stage.pod("early", EARLY, "n")
        stage.store.delete("pods", "default/early-0")
        stage.pod("early", EARLY)


def test_request_that_is_counted_twice_is_a_violation() -> None:
    stage = Stage()
    NoTradingPlaces(stage.view, STALE_S)
    stage.backfilled()
    stage.place("early", "Open", preempting=True)
    _asks(stage, 1)
    stage.job("late", backfill={"asked": 1})
    with pytest.raises(Violated, match="late counts 2 requests to leave, but was asked 1 times"):
        stage.job("late", backfill={"asked": 2})


def _waits(stage: Stage, settings: Backfill = SETTINGS) -> NoReservedGangDelayed:
    trace = Trace()
    delays = NoReservedGangDelayed(stage.view, trace, STALE_S, settings, 0.0, 10.0)
    NothingIdleWhileRestartableWaits(stage.view, trace, STALE_S, settings, 0.0, delays)
    return delays


def test_backfilled_gang_that_is_not_asked_in_time_is_a_violation() -> None:
    stage = Stage()
    _waits(stage)
    stage.backfilled()
    stage.seconds(SETTINGS.delay_s + LIMIT_S)
    with pytest.raises(Violated, match="early/early-uid could start but for backfilled gangs"):
        stage.seconds(2)


def test_gang_behind_another_waiting_gang_is_not_delayed_by_backfill() -> None:
    stage = Stage()
    _waits(stage)
    stage.backfilled()
    stage.pod("first", "2027-01-15T07:00:00Z")
    stage.place("first", "Open")
    stage.seconds(SETTINGS.delay_s + LIMIT_S + 60)


def test_gang_that_waits_too_long_for_others_to_leave_is_a_violation() -> None:
    stage = Stage()
    _waits(stage)
    stage.backfilled()
    stage.place("early", "Open", preempting=True)
    stage.seconds(3 * 10 + 2 * 30 + 30 + LIMIT_S)
    with pytest.raises(Violated, match=r"early/early-uid has waited for .* for others to leave its nodes"):
        stage.seconds(2)


def test_restartable_gang_that_waits_beside_a_free_node_is_a_violation() -> None:
    stage = Stage()
    _waits(stage)
    stage.job("late")
    stage.pod("late", LATE)
    stage.seconds(LIMIT_S)
    with pytest.raises(Violated, match="late/late-uid is restartable and fits on free nodes"):
        stage.seconds(2)


@pytest.mark.parametrize("restartable", [False, None])
def test_gang_that_would_lose_its_work_may_wait_beside_a_free_node(restartable: bool | None) -> None:
    stage = Stage()
    _waits(stage)
    stage.job("late", restartable=restartable)
    stage.pod("late", LATE)
    stage.seconds(LIMIT_S + 60)


@pytest.mark.parametrize(("due_s", "allowed"), [(STALE_S, True), (STALE_S + 3.0, False)])
def test_backfill_for_a_gang_that_only_waits_for_backfilled_gangs_is_a_violation(due_s: float, allowed: bool) -> None:
    stage = Stage()
    _waits(stage)
    stage.backfilled()
    stage.seconds(due_s)
    stage.job("later")
    stage.pod("later", LATE)
    with nullcontext() if allowed else pytest.raises(Violated, match="which waits only for such gangs"):
        stage.place("later", "Open", backfilled_for="early")
