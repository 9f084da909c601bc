"""Answers nodes that restore a checkpoint: collects their results, and waits for the verdict in the job's status.

A request costs O(1), whatever the number of nodes. The results are in memory: after a restart of the controller, the
nodes ask again. The rules are in `attempts/restoring.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, get_args

from msgspec.structs import replace

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import RestoreProblem, TrainingJobStatus
from muster.kube.objects.pod import Pod
from muster.trainingjobs.attempts import restoring, run_record
from muster.trainingjobs.attempts.restoring import Verdict
from muster.trainingjobs.metrics import TrainingJobMetrics
from muster.trainingjobs.plan import WriteStatus
from muster.trainingjobs.pods.slots import slot_of
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.server import RestoreRequest, Stale
from muster.trainingjobs.snapshot import RestoreFailure, Restoring

log = logging.getLogger(__name__)

WAIT_S: Final = 20.0
"""A request is answered after this time even without a verdict. The node then asks again."""
SOURCES: Final = ("bucket", "peer", "disk")


class _Round:
    """The nodes' results for one checkpoint in one attempt."""

    def __init__(self, attempt: int, path: str) -> None:
        self.attempt, self.path = attempt, path
        self.verified: set[str] = set()
        self.failure: RestoreFailure | None = None
        self.bytes = dict.fromkeys(SOURCES, 0)


class Agreement:
    """The results of all jobs whose nodes restore a checkpoint, by job UID.

    Args:
        newest: returns a job by its key.
        members: the supervisors, which know what their nodes see.
        changed: called with the job's key when all nodes have verified the checkpoint, or the first one failed.
        metrics: counts results.
    """

    def __init__(
        self,
        newest: Callable[[str], TrainingJob | None],
        members: Members,
        changed: Callable[[str], None],
        metrics: TrainingJobMetrics,
    ) -> None:
        """Create an empty collection."""
        self._newest, self._members = newest, members
        self._changed, self._metrics = changed, metrics
        self._rounds: dict[str, _Round] = {}
        self._dropped: dict[str, TrainingJobStatus] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    async def restore(self, job_key: str, job_uid: str, pod: Pod, said: RestoreRequest) -> Verdict:
        """Take a node's result, and wait for the verdict for a limited time.

        Raises:
            Stale: the attempt is over.
            NotThisCheckpoint: the attempt does not start from this checkpoint.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while True:
            job = self._newest(job_key)
            if job is None or job.uid != job_uid:
                raise Stale(0)
            if said.attempt != job.status.attempt:
                raise Stale(job.status.attempt)
            found = restoring.verdict(self._status(job), said.path)
            if found is not None:
                return found
            if job.status.completion_time is not None:
                raise Stale(job.status.attempt)
            if not (self._verified(job, pod, said) if said.ok else self._failed(job, pod, said)):
                return Verdict("fail")
            left_s = deadline - loop.time()
            if left_s <= 0:
                return Verdict("wait")
            await self._wait(job_uid, left_s)

    def _status(self, job: TrainingJob) -> TrainingJobStatus:
        """The job's status, with what an API server of an older version dropped from it."""
        status, kept = job.status, self._dropped.get(job.uid)
        if kept is None or kept.attempt != status.attempt:
            return status
        return replace(status, run=kept.run, quarantined_checkpoints=kept.quarantined_checkpoints)

    def _verified(self, job: TrainingJob, pod: Pod, said: RestoreRequest) -> bool:
        found, record = self._round(job.uid, said), run_record.recorded(job.status)
        if pod.uid not in found.verified:
            found.verified.add(pod.uid)
            for source in SOURCES:
                found.bytes[source] += max(0, said.bytes_from.get(source, 0))
            if record is None or record.checkpoint is None or len(found.verified) >= record.nodes:
                self._changed(job.key)
        return True

    def _failed(self, job: TrainingJob, pod: Pod, said: RestoreRequest) -> bool:
        """Store a failure. Returns False if it is not about the checkpoint."""
        if said.reason not in get_args(RestoreProblem):
            return False
        member = self._members.of_pod(job.uid, pod.uid)
        seen = member.looked.get(said.path) if member is not None and member.looked is not None else None
        reason: RestoreProblem = said.reason  # type: ignore[assignment]
        failure = RestoreFailure(slot_of(pod), pod.spec.node_name, reason, said.message)
        if not restoring.is_damage(failure, seen):
            return False
        found = self._round(job.uid, said)
        if found.failure is None:  # the first one counts
            found.failure = failure
            self._changed(job.key)
        return True

    def seen(self, job_uid: str) -> Restoring | None:
        """The job's results for the newest checkpoint that its nodes asked about."""
        found = self._rounds.get(job_uid)
        if found is None:
            return None
        return Restoring(found.attempt, found.path, len(found.verified), found.failure)

    async def _wait(self, job_uid: str, timeout_s: float) -> None:
        event = self._waiting.setdefault(job_uid, asyncio.Event())
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiting,), timeout=timeout_s)
        finally:
            waiting.cancel()

    def wrote(self, job: TrainingJob, action: WriteStatus) -> None:
        """Count the result of a restore, and let the job's requests look at its new status.

        `job` is what the API server returned for this write.
        """
        self._keep_dropped(job, action)
        job_uid = job.uid
        found = self._rounds.pop(job_uid, None) if action.reason == "Restored" else None
        if found is not None:
            for source, size in found.bytes.items():
                self._metrics.restored_bytes.labels(source).inc(size)
        elif action.reason in ("CheckpointQuarantined", "CheckpointsBad") and action.status.quarantined_checkpoints:
            self._metrics.quarantined.labels(action.status.quarantined_checkpoints[-1].reason).inc()
        self._wake(job_uid)

    def _keep_dropped(self, job: TrainingJob, action: WriteStatus) -> None:
        """Remember verdicts that the API server did not store. Otherwise the nodes would wait for ever."""
        if action.reason not in ("Restored", "CheckpointQuarantined"):
            return
        if _results(job.status) == _results(action.status):
            self._dropped.pop(job.uid, None)
            return
        before = self._dropped.get(job.uid)
        same_attempt = before is not None and before.attempt == action.status.attempt
        bad = before.quarantined_checkpoints if before is not None and same_attempt else ()
        every = {each.path: each for each in (*bad, *action.status.quarantined_checkpoints)}
        self._dropped[job.uid] = replace(action.status, quarantined_checkpoints=tuple(every.values()))
        log.warning(
            "%s: the API server dropped the result of a restore: the CustomResourceDefinition trainingjobs.muster.dev "
            "is older than this controller; apply the one of this version, so that a new leader knows it",
            job.key,
        )

    def forget(self, job_uid: str) -> None:
        """Forget a deleted job."""
        self._rounds.pop(job_uid, None)
        self._dropped.pop(job_uid, None)
        self._wake(job_uid)

    def clear(self) -> None:
        """Forget everything, because another replica has led in between."""
        self._rounds.clear()
        self._dropped.clear()
        for job_uid in list(self._waiting):
            self._wake(job_uid)

    def _wake(self, job_uid: str) -> None:
        event = self._waiting.pop(job_uid, None)
        if event is not None:
            event.set()

    def _round(self, job_uid: str, said: RestoreRequest) -> _Round:
        found = self._rounds.get(job_uid)
        if found is None or (found.attempt, found.path) != (said.attempt, said.path):
            found = self._rounds[job_uid] = _Round(said.attempt, said.path)
        return found


def _results(status: TrainingJobStatus) -> tuple[bool, list[str]]:
    """Whether the status says that the attempt is restored, and which checkpoints are bad."""
    handed = status.run.checkpoint if status.run is not None else None
    restored = handed is not None and handed.restored is not None
    return restored, [each.path for each in status.quarantined_checkpoints]
