"""Long polls: who is answered when, and what silence means."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from muster.trainingjobs.plan import Directive, Host, RunPlan
from muster.trainingjobs.rendezvous import members as members_module
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.snapshot import Member, RankExit

JOB, KEY = "job-uid", "ns/job"
RUN = RunPlan(
    launcher="mpi",
    command=("train",),
    mpi_args=(),
    ranks_per_node=2,
    hosts=tuple(Host(slot, f"p{slot}", f"10.0.0.{slot}", 1000 + slot) for slot in range(3)),
    master_address="10.0.0.0",
    master_port=20_001,
    checkpoint=None,
)


def hold(attempt: int = 1) -> Directive:
    return Directive(attempt=attempt, desired="hold", slots=("p0", "p1", "p2"))


def run(attempt: int = 1, plan: RunPlan | None = RUN) -> Directive:
    return Directive(attempt=attempt, desired="run", run=plan, slots=("p0", "p1", "p2"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Gang:
    """Members under test, and who was looked at again."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.changed: list[str] = []
        self.members = Members(b"secret", self.changed.append, self.clock, random.Random(1))

    async def poll(self, pod: str, revision: int = -1, **said: Any) -> dict[str, Any]:
        return await self.members.poll(JOB, KEY, Member(pod_uid=pod, **said), revision)

    async def waiting(self, pod: str, revision: int, **said: Any) -> asyncio.Task[dict[str, Any]]:
        task = asyncio.create_task(self.poll(pod, revision, **said))
        await asyncio.sleep(0)
        assert not task.done()
        return task


async def test_new_directive_is_answered_at_once_and_a_known_one_waits() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    first = await gang.poll("p0")
    assert (first["desired"], first["attempt"]) == ("hold", 1)
    waiting = await gang.waiting("p0", first["revision"])
    gang.members.direct(JOB, KEY, run())
    answer = await waiting
    assert (answer["desired"], answer["run"]["nodeRank"]) == ("run", 0)


async def test_only_node_rank_0_gets_every_host() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run())
    hosts = [[host["address"] for host in (await gang.poll(f"p{slot}"))["run"]["hosts"]] for slot in range(3)]
    assert hosts[0] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert hosts[2] == ["10.0.0.0", "10.0.0.2"]


async def test_keys_differ_between_attempts_and_survive_a_restart() -> None:
    one, two = Gang().members, Gang().members
    assert one.attempt_key(JOB, 1) == two.attempt_key(JOB, 1)
    assert len({one.attempt_key(JOB, 1), one.attempt_key(JOB, 2), one.attempt_key("other", 1)}) == 3


async def test_a_newer_request_of_the_same_pod_ends_the_older() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    older = await gang.waiting("p0", revision)
    newer = await gang.waiting("p0", revision, state="finished", exit=RankExit(attempt=1, code=1))
    assert (await older)["revision"] == revision
    assert gang.members.of(JOB)["p0"].state == "finished"
    assert gang.members.of(JOB)["p0"].silent_since is None
    newer.cancel()


async def test_a_broken_connection_is_silence_from_that_moment() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    waiting = await gang.waiting("p0", revision)
    gang.changed.clear()
    waiting.cancel()
    await asyncio.wait([waiting])
    member = gang.members.of(JOB)["p0"]
    assert (member.silent_since, member.cut) == (gang.clock.now, True)
    assert gang.changed == [KEY]


async def test_a_poll_that_ends_because_the_next_is_there_is_no_silence() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    older = await gang.waiting("p0", revision)
    for _ in range(3):
        newer = await gang.waiting("p0", revision)
        assert (await older)["revision"] == revision
        assert gang.members.of(JOB)["p0"].silent_since is None
        older = newer
    older.cancel()


async def test_a_node_lost_just_after_it_was_answered_is_noticed_like_any_other() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    older = await gang.waiting("p0", revision)
    newer = await gang.waiting("p0", revision)
    await older  # one request is answered because the next one is there
    newer.cancel()  # reset
    await asyncio.wait([newer])
    assert gang.members.of(JOB)["p0"].cut


async def test_a_poll_that_is_not_followed_in_time_is_silence_since_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "POLL_S_MIN", 0.01)
    monkeypatch.setattr(members_module, "LATE_S", 0.02)
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    await gang.poll("p0", revision)
    member = gang.members.of(JOB)["p0"]
    assert (member.silent_since, member.cut) == (gang.clock.now - 0.02, False)


async def test_polls_of_members_that_start_at_once_drift_apart() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    reported = [(await gang.poll(f"p{slot}"))["pollS"] for slot in range(3)]
    assert len(set(reported)) == 3
    assert all(1.5 <= each <= 2.5 for each in reported)


async def test_running_members_hold_their_attempt_while_others_rejoin() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run(2, None))
    answer = await gang.poll("p1", state="running", attempt=2)
    assert (answer["desired"], answer["attempt"]) == ("hold", 2)


async def test_the_first_plan_of_an_attempt_is_kept() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run(1))
    assert not gang.members.direct(JOB, KEY, run(1, replace(RUN, master_port=1)))
    assert not gang.members.direct(JOB, KEY, run(1, None))
    assert gang.members.direct(JOB, KEY, run(2, replace(RUN, master_port=1)))


async def test_pod_without_slot_is_directed_to_exit() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run())
    answer = await gang.poll("stranger")
    assert (answer["desired"], answer["exitCode"]) == ("exit", 1)


async def test_silence_of_most_is_not_believed() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    for slot in range(3):
        await gang.poll(f"p{slot}")  # answered at once: silent from now on
    gang.clock.now += 2
    assert not gang.members.contact_trusted()
    waiting = [await gang.waiting(f"p{slot}", 4) for slot in (0, 1)]
    assert gang.members.contact_trusted()
    for task in waiting:
        task.cancel()


async def test_polls_are_short_in_small_clusters_and_bounded_in_large_ones() -> None:
    gang = Gang()
    assert gang.members.poll_s == 2
    gang.members._total = 7_500
    assert gang.members.poll_s == 15
    gang.members._total = 1_000_000
    assert gang.members.poll_s == 20


async def test_forgotten_pods_and_jobs_leave_nothing_behind() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    for slot in range(3):
        await gang.poll(f"p{slot}")
    gang.members.forget(JOB, "p0")
    assert len(gang.members) == 2
    gang.members.forget_job(JOB)
    assert (len(gang.members), gang.members.polling, gang.members.contact_trusted()) == (0, 0, True)


async def test_a_job_deleted_while_its_supervisors_listen_does_not_count_against_the_contact_to_others() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run())
    revision = (await gang.poll("p0"))["revision"]
    waiting = [await gang.waiting(f"p{slot}", revision) for slot in range(3)]
    gang.members.direct("other", "ns/other", replace(hold(), slots=("q0", "q1")))
    for pod in ("q0", "q1"):
        await gang.members.poll("other", "ns/other", Member(pod_uid=pod), -1)
    gang.members.forget_job(JOB)
    assert [(await poll)["desired"] for poll in waiting] == ["exit"] * 3
    assert len(gang.members) == 2
    q0 = asyncio.create_task(gang.members.poll("other", "ns/other", Member(pod_uid="q0"), 4))
    await asyncio.sleep(0)
    gang.clock.now += 100
    assert gang.members.contact_trusted(), "q1 alone is silent, one of two"
    q0.cancel()


@pytest.mark.parametrize("directive", [hold(2), run(2)], ids=["held", "runs"])
async def test_supervisor_without_an_open_poll_exits_at_its_next_one_when_its_job_is_deleted(
    directive: Directive,
) -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, directive)
    for slot in range(2):
        revision = (await gang.poll(f"p{slot}"))["revision"]
    gang.members.forget_job(JOB)
    for slot in range(3):  # the last one reports for the first time
        answer = await gang.poll(f"p{slot}", revision)
        assert (answer["desired"], answer["attempt"], answer["exitCode"]) == ("exit", 2, 1)
        assert gang.members.directive(JOB) is None, "nothing is kept for a job that is gone"
    assert (len(gang.members), gang.members.polling) == (0, 0)


async def test_job_that_is_directed_again_is_not_a_deleted_one() -> None:
    gang = Gang()
    for directive in (hold(), hold(2)):
        gang.members.forget_job(JOB)
        gang.members.direct(JOB, KEY, directive)
        waiting = await gang.waiting("p0", directive.attempt * 4)
        gang.members.clear()
        await waiting
        waiting = await gang.waiting("p0", directive.attempt * 4)
        waiting.cancel()


async def test_deleted_jobs_are_known_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "_DELETED_MAX", 2)
    gang = Gang()
    for job in ("first", "second", "third"):
        gang.members.direct(job, KEY, hold())
        gang.members.forget_job(job)
    assert (await gang.members.poll("third", KEY, Member(pod_uid="p0"), -1))["desired"] == "exit"
    waiting = asyncio.create_task(gang.members.poll("first", KEY, Member(pod_uid="p0"), -1))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_nothing_is_kept_of_more_gone_jobs_than_are_known_once_their_supervisors_exited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members_module, "_DELETED_MAX", 2)
    gang, jobs = Gang(), [f"job{number}" for number in range(5)]
    waiting = [asyncio.create_task(gang.members.poll(job, KEY, Member(pod_uid=f"of-{job}"), -1)) for job in jobs]
    await asyncio.sleep(0)
    for job in jobs:
        gang.members.job_is_gone(job, 1, 30)
    assert [(await poll)["desired"] for poll in waiting] == ["exit"] * len(jobs)
    assert [gang.members.directive(job) for job in jobs] == [None] * len(jobs)
    assert (len(gang.members), gang.members.polling) == (0, 0)


async def test_members_that_do_not_rejoin_after_another_leader_are_not_missed() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, hold())
    revision = (await gang.poll("p0"))["revision"]
    waiting = await gang.waiting("p0", revision)
    gang.members.clear()
    await waiting
    gang.clock.now += 100
    assert (len(gang.members), gang.members.contact_trusted()) == (0, True)


async def test_ranks_get_the_remote_shell_that_the_job_requests() -> None:
    gang = Gang()
    gang.members.direct(JOB, KEY, run(1, replace(RUN, remote_shell="sshd")))
    assert (await gang.poll("p1"))["run"]["remoteShell"] == "sshd"


async def test_ranks_learn_from_the_newest_directive_whether_their_job_is_backfilled() -> None:
    gang = Gang()
    assert not gang.members.backfilled(JOB)
    gang.members.direct(JOB, KEY, replace(hold(), backfilled=True))
    assert gang.members.backfilled(JOB)
    gang.members.direct(JOB, KEY, hold())
    assert not gang.members.backfilled(JOB)
