"""What simulations found, one by one, where a small test says it better than a seed (docs/track-record.md)."""

from __future__ import annotations

import asyncio

from muster.scheduler.nodes.node_record import NodeRecord
from muster.trainingjobs.plan import Directive
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.snapshot import Member

JOB, KEY = "job-uid", "ns/job"


def test_reckoning_with_what_is_free_on_one_node_never_frees_another() -> None:
    """`muster explain` added up what would be freed, in a dictionary that all nodes with unknown slots shared."""
    held, other = NodeRecord("held"), NodeRecord("other")
    held.fully_held = other.fully_held = 1
    held.free()["nvidia.com/gpu"] = 8
    assert other.free() == {}


async def test_pod_that_joins_before_its_job_is_reconciled_is_not_dismissed() -> None:
    """The API server was slow to answer the controller, and quick to everybody else: the pod ran before it was seen."""
    members = Members(b"secret", lambda key: None)
    members.direct(JOB, KEY, Directive(attempt=2, desired="hold", slots=("p0", "")))
    made_now, superseded = Member(pod_uid="p1", made_for=2), Member(pod_uid="p2", made_for=1)
    assert (await members.poll(JOB, KEY, made_now, -1))["desired"] == "hold"
    assert (await members.poll(JOB, KEY, superseded, -1))["desired"] == "exit"


async def test_supervisors_that_ended_as_directed_are_not_missed() -> None:
    """Pods of jobs that are over stay for their logs: their silence once made that of a lost node incredible."""
    now, looked_at = [1000.0], list[str]()
    members = Members(b"secret", looked_at.append, lambda: now[0])
    for pod in ("p0", "p1", "p2"):
        members.direct(pod, f"ns/{pod}", Directive(attempt=1, desired="exit", slots=(pod,)))
        assert (await members.poll(pod, f"ns/{pod}", Member(pod_uid=pod, made_for=1), -1))["desired"] == "exit"
    members.direct(JOB, KEY, Directive(attempt=1, desired="hold", slots=("q0",)))
    revision = (await members.poll(JOB, KEY, Member(pod_uid="q0", made_for=1), -1))["revision"]
    open_poll = asyncio.create_task(members.poll(JOB, KEY, Member(pod_uid="q0", made_for=1), revision))
    await asyncio.sleep(0)
    looked_at.clear()
    now[0] += 60
    members.sweep()
    assert members.contact_trusted()
    assert looked_at == []
    open_poll.cancel()
