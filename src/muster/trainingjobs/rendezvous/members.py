"""The supervisors that have reported: each one's last report, its open long poll, and its directive.

A poll costs O(1). A new directive wakes the polls of one job only. The state is in memory: after a restart of the
controller, supervisors report again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from muster.kube.clock import steady_time
from muster.trainingjobs.plan import Directive, RunPlan
from muster.trainingjobs.rendezvous.secrets import attempt_key
from muster.trainingjobs.snapshot import Member

POLL_S_MAX: Final = 20.0
POLL_S_MIN: Final = 2.0
POLLS_PER_S: Final = 500
"""Rate of idle polls of all supervisors together. With shorter polls, a node without power is detected sooner."""
LATE_S: Final = 6.0
"""A poll stays open this much longer than the poll interval. The next poll, on another connection, ends it."""
_JITTER: Final = 0.25
"""Jitter of poll intervals, as a fraction, so that members that start together do not always poll together."""
_BETWEEN_POLLS_S: Final = 1.0
_DELETED_MAX: Final = 1024
"""How many deleted jobs are known, whose supervisors may poll once more."""
_STALL_REVISION: Final = 1 << 40
"""Added to a directive's revision for each stall; larger than the revisions of one attempt."""

Answer = dict[str, Any]
CacheTickets = Callable[[str, str, int, RunPlan, int, int], Mapping[str, Any] | None]
"""Returns what a node needs to use the caches of its gang: {ticket, key, peers, expires}.

None without caches, and while the node's ticket is good for long. Arguments: the job's key and UID, the attempt, its
plan, the node rank, and when the node's ticket expires (0: it has none). It is called for each `run` directive that is
sent, so it must be cheap.
"""


class Gang:
    """The members of one job and their directive."""

    def __init__(self, key: str) -> None:
        """Create a gang without members and without a directive."""
        self.key = key
        self.members: dict[str, Member] = {}
        self.polls: dict[str, asyncio.Future[None]] = {}
        self.directive: Directive | None = None
        self.is_deleted = False
        self.stalls = 0
        self.ranks: Mapping[str, int] = {}
        self.slots: frozenset[str] = frozenset()


class Members:
    """All gangs, by job UID.

    Args:
        secret: the cluster's secret; the key of each attempt is derived from it.
        changed: called with the job's key when a member reports something new or falls silent.
        clock: seconds since the epoch.
        rng: jitter.
        tickets: returns each node's part of the caches.
    """

    def __init__(
        self,
        secret: bytes,
        changed: Callable[[str], None],
        clock: Callable[[], float] = steady_time,
        rng: random.Random | None = None,
        tickets: CacheTickets = lambda *_: None,
    ) -> None:
        """Create an empty collection."""
        self._rng = rng or random.Random()
        self._secret = secret
        self._tickets = tickets
        self._changed = changed
        self._clock = clock
        self._gangs: dict[str, Gang] = {}
        self._deleted: dict[str, Directive] = {}  # by job UID, oldest first: to exit
        self._silent: dict[str, tuple[str, float]] = {}
        self._total = 0

    def __len__(self) -> int:
        """Returns the number of known members."""
        return self._total

    @property
    def polling(self) -> int:
        """Returns the number of open polls."""
        return sum(len(gang.polls) for gang in self._gangs.values())

    @property
    def poll_s(self) -> float:
        """Returns how long a supervisor waits before its next poll, on average."""
        return min(POLL_S_MAX, max(POLL_S_MIN, self._total / POLLS_PER_S))

    def of(self, job_uid: str) -> Mapping[str, Member]:
        """Return the members of a job by pod UID."""
        gang = self._gangs.get(job_uid)
        return dict(gang.members) if gang is not None else {}

    def of_pod(self, job_uid: str, pod_uid: str) -> Member | None:
        """The supervisor of one pod."""
        gang = self._gangs.get(job_uid)
        return gang.members.get(pod_uid) if gang is not None else None

    def directive(self, job_uid: str) -> Directive | None:
        """Returns the directive of the job's members."""
        gang = self._gangs.get(job_uid)
        return gang.directive if gang is not None else None

    def checkpoint_now(self, job_uid: str) -> bool:
        """Returns whether the SDK should ask the job's ranks for a checkpoint."""
        directive = self.directive(job_uid)
        return directive is not None and directive.checkpoint_now

    def backfilled(self, job_uid: str) -> bool:
        """Returns whether the job may be asked to leave its nodes, because they are reserved for another gang."""
        directive = self.directive(job_uid)
        return directive is not None and directive.backfilled

    def contact_trusted(self) -> bool:
        """False while more than half of all members are silent, because the controller may have lost the network."""
        now = self._clock()
        silent = sum(1 for _, since in self._silent.values() if now - since > _BETWEEN_POLLS_S)
        return silent * 2 <= self._total

    def sweep(self) -> None:
        """Reconcile jobs with a silent member; call every second."""
        now = self._clock()
        for key in dict.fromkeys(key for key, since in self._silent.values() if now - since > _BETWEEN_POLLS_S):
            self._changed(key)

    def clear(self) -> None:
        """Forget everything, because another replica has led in between."""
        for gang in self._gangs.values():
            self._wake(gang)
        self._gangs.clear()
        self._deleted.clear()
        self._silent.clear()
        self._total = 0

    def forget(self, job_uid: str, pod_uid: str) -> Member | None:
        """Forget the supervisor of a deleted pod, and return its last report."""
        gang = self._gangs.get(job_uid)
        member = gang.members.pop(pod_uid, None) if gang is not None else None
        if gang is not None and member is not None:
            self._total -= 1
            self._silent.pop(pod_uid, None)
            self._wake_one(gang, pod_uid)
            self._drop_if_over(job_uid, gang)
        return member

    def forget_job(self, job_uid: str) -> None:
        """Forget a job that is gone, and wake its open polls: supervisors exit before their pods are deleted.

        Supervisors without an open poll exit at their next one.
        """
        gang = self._gangs.pop(job_uid, None)
        if gang is not None:
            if gang.directive is not None:
                gang.directive = replace(gang.directive, desired="exit", exit_code=1, run=None, checkpoint_now=False)
                self._exit(job_uid, replace(gang.directive, slots=(), look=()))
            self._total -= len(gang.members)
            for pod_uid in gang.members:
                self._silent.pop(pod_uid, None)
            self._wake(gang)

    def lacks_directive(self, job_uid: str, attempt: int) -> bool:
        """Returns whether supervisors of this attempt still have to get a directive, as from a new leader."""
        directive = self._deleted.get(job_uid) or self.directive(job_uid)
        return directive is None or directive.attempt < attempt

    def job_is_gone(self, job_uid: str, attempt: int, grace_s: int) -> None:
        """Direct the supervisors of a job that was deleted while no replica led to exit.

        Args:
            job_uid: of the job.
            attempt: the newest that a supervisor reported.
            grace_s: the job's, as its pods record it.
        """
        self._exit(job_uid, Directive(attempt=attempt, desired="exit", exit_code=1, grace_s=grace_s))
        gang = self._gangs.get(job_uid)
        if gang is not None:
            gang.directive, gang.is_deleted = self._deleted[job_uid], True
            self._wake(gang)

    def _exit(self, job_uid: str, directive: Directive) -> None:
        """Keep the last directive of a deleted job for supervisors that poll once more."""
        self._deleted[job_uid] = directive
        while len(self._deleted) > _DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def direct(self, job_uid: str, key: str, directive: Directive) -> bool:
        """Set the directive of a job's members.

        The first run plan of an attempt is kept. Returns whether the directive changed.
        """
        self._deleted.pop(job_uid, None)  # it was not in an incomplete list, and is there
        gang = self._gangs.setdefault(job_uid, Gang(key))
        gang.is_deleted = False
        old = gang.directive
        if old is not None and old.run is not None and (old.attempt, old.desired) == (directive.attempt, "run"):
            directive = replace(directive, run=old.run if directive.desired == "run" else None)
        if old == directive:
            return False
        gang.directive = directive
        gang.slots = frozenset(directive.slots)
        if directive.run is not None and (old is None or old.run is not directive.run):
            gang.ranks = {host.pod_uid: rank for rank, host in enumerate(directive.run.hosts)}
        self._wake(gang)
        return True

    def stalled(self, job_uid: str) -> None:
        """Ask the job's members once to collect the stacks of their ranks."""
        gang = self._gangs.get(job_uid)
        if gang is not None:
            gang.stalls += 1
            self._wake(gang)

    async def poll(self, job_uid: str, key: str, said: Member, revision: int) -> Answer:
        """Serve one long poll: store the report, and answer when the directive changes or the next poll arrives."""
        gang = self._gangs.get(job_uid)
        if gang is None:
            gang = self._gangs[job_uid] = Gang(key)
            gang.directive, gang.is_deleted = self._deleted.get(job_uid), job_uid in self._deleted
        self._said(gang, said)
        self._wake_one(gang, said.pod_uid)
        waiting = asyncio.get_running_loop().create_future()
        gang.polls[said.pod_uid] = waiting
        cut, late_s = True, 0.0
        try:
            answer = self._answer(job_uid, gang, said.pod_uid)
            if answer is None or answer["revision"] == revision:
                held_s = self.poll_s * (1 + _JITTER) + LATE_S
                done, _ = await asyncio.wait((waiting,), timeout=held_s)
                late_s = 0.0 if done else LATE_S
                answer = self._answer(job_uid, gang, said.pod_uid)
            cut = False
            return answer if answer is not None else {"revision": revision, "desired": "hold", "attempt": 0}
        finally:
            if gang.polls.get(said.pod_uid) is waiting:
                del gang.polls[said.pod_uid]
                if self._gangs.get(job_uid) is gang:  # otherwise the job was forgotten
                    self._silence(gang, said.pod_uid, cut, late_s)
                    self._drop_if_over(job_uid, gang)

    def _drop_if_over(self, job_uid: str, gang: Gang) -> None:
        """Forget a gang that only a supervisor of a deleted job brought back, once the last of them has gone."""
        over = gang.directive is None or gang.is_deleted
        if over and not gang.members and not gang.polls:
            self._gangs.pop(job_uid, None)

    def _said(self, gang: Gang, said: Member) -> None:
        now, old = self._clock(), gang.members.get(said.pod_uid)
        same_exit = old is not None and old.exit == said.exit
        same_state = old is not None and (old.state, old.attempt) == (said.state, said.attempt)
        member = replace(
            said,
            state_at=old.state_at if old is not None and same_state else now,
            exit_at=old.exit_at if old is not None and same_exit else now,
        )
        gang.members[said.pod_uid] = member
        self._silent.pop(said.pod_uid, None)
        if old is None:
            self._total += 1
        if old is None or _content(old) != _content(member) or (old.silent_since or now) < now - _BETWEEN_POLLS_S:
            self._changed(gang.key)

    def _silence(self, gang: Gang, pod_uid: str, cut: bool, late_s: float) -> None:
        member = gang.members.get(pod_uid)
        if member is None:
            return
        if (
            self._desired(gang, pod_uid)[0] == "exit"
        ):  # a supervisor that must exit may be silent, even if its pod is kept
            del gang.members[pod_uid]
            self._total -= 1
            return
        now = self._clock() - late_s
        gang.members[pod_uid] = replace(member, silent_since=now, cut=cut)
        self._silent[pod_uid] = (gang.key, now)
        if cut:
            self._changed(gang.key)

    def _answer(self, job_uid: str, gang: Gang, pod_uid: str) -> Answer | None:
        directive = gang.directive
        if directive is None:
            return None
        desired, code = self._desired(gang, pod_uid)
        run = directive.run
        if desired == "run" and (run is None or pod_uid not in gang.ranks):
            desired = "hold"  # a member that runs this attempt continues
        answer: Answer = {
            "revision": directive.attempt * 4
            + {"hold": 0, "run": 1, "exit": 2}[desired]
            + (code != 0)
            + gang.stalls * _STALL_REVISION,
            "attempt": directive.attempt,
            "desired": desired,
            "exitCode": code,
            "graceS": directive.grace_s,
            "pollS": round(self.poll_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER), 3),
        }
        if desired == "hold" and directive.look:
            answer["look"] = list(directive.look)
        if gang.stalls:
            answer["stall"] = gang.stalls
        if desired == "run" and run is not None:
            member, expires = gang.members.get(pod_uid), 0
            if member is not None and member.attempt == directive.attempt and member.state != "idle":
                expires = member.cache_expires
            answer["run"] = self._run(gang.key, job_uid, directive.attempt, run, gang.ranks[pod_uid], expires)
        return answer

    def _desired(self, gang: Gang, pod_uid: str) -> tuple[str, int]:
        """Returns what the gang's directive asks of a pod, and the pod's exit code."""
        directive, member = gang.directive, gang.members.get(pod_uid)
        if directive is None:
            return "hold", 0
        if pod_uid not in gang.slots and (member is None or member.made_for < directive.attempt):
            return "exit", 1  # superseded, unless the pod is of this attempt and newer than the directive
        return directive.desired, directive.exit_code

    def _run(self, key: str, job_uid: str, attempt: int, run: RunPlan, rank: int, expires: int) -> Answer:
        ours = run.hosts if rank == 0 else (run.hosts[0], run.hosts[rank])
        answer: Answer = {
            "launcher": run.launcher,
            "command": list(run.command),
            "mpiArgs": list(run.mpi_args),
            "remoteShell": run.remote_shell,
            "ranksPerNode": run.ranks_per_node,
            "nodeRank": rank,
            "nodes": len(run.hosts),
            "key": self.attempt_key(job_uid, attempt),
            "masterAddress": run.master_address,
            "masterPort": run.master_port,
            "hosts": [
                {"address": host.address, "shellPort": host.shell_port, "ranks": run.ranks_per_node} for host in ours
            ],
            "env": {},
        }
        if run.checkpoint is not None:
            answer["checkpoint"] = {"path": run.checkpoint.path, "step": run.checkpoint.step}
            if run.checkpoint.manifest:
                answer["checkpoint"]["manifest"] = run.checkpoint.manifest
        cache = self._tickets(key, job_uid, attempt, run, rank, expires)
        if cache is not None:
            answer["cache"] = dict(cache)
        return answer

    def attempt_key(self, job_uid: str, attempt: int) -> str:
        """Return the remote-shell key of an attempt, in hex. It is the same after a restart of the controller."""
        return attempt_key(self._secret, job_uid, attempt)

    def _wake(self, gang: Gang) -> None:
        for waiting in gang.polls.values():
            if not waiting.done():
                waiting.set_result(None)

    def _wake_one(self, gang: Gang, pod_uid: str) -> None:
        waiting = gang.polls.get(pod_uid)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def _content(member: Member) -> tuple[object, ...]:
    said = member.state, member.attempt, member.address, member.shell_port, member.exit
    found = member.looking, member.looked, member.found, member.others, member.unwritable
    return *said, *found, member.idle, member.traces, member.cache_address
