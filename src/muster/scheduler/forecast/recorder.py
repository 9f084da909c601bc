"""Records ended gangs and outcomes of estimates in the RunHistory, and makes models of run times from it.

New records are written together: at once if the last write was a minute ago, else when that minute is over. Without a
new record there is no write. If the API server does not serve RunHistory, records stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from muster.api.names import LABEL_TEAM
from muster.api.run_history import RUN_HISTORY, TEXT_MAX, RunHistory, RunHistorySpec, StartCalibration
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, NotFound
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.informer import Informer
from muster.kube.objects.meta import KubeObject, ObjectMeta, Resource, is_later
from muster.kube.planloop import PlanLoop, Rest, complete
from muster.scheduler.forecast.calibration import Calibration
from muster.scheduler.forecast.ended import PodRuns, ended_job, likeness_of_job, running
from muster.scheduler.forecast.history import Runs, groups_of, merged, read_groups, rounded
from muster.scheduler.forecast.outcomes import (
    Outcome,
    StartRecord,
    after,
    overdue,
    read_calibration,
    started,
    to_calibration,
)
from muster.scheduler.forecast.run_times import RunTimes
from muster.scheduler.gangs.adapters.membership import gang_key
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.informers.owners import served

log = logging.getLogger(__name__)

NAME: Final = "run-history"
WRITE_S: Final = 60.0
"""Minimum time between two writes."""
SETTLE_S: Final = 1.0
"""Records of this time are written together."""
IDLE_S: Final = 600.0
"""Longest time between two looks, and the time until a model counts the time of running gangs again."""
ASK_AGAIN_S: Final = 300.0
"""Interval of discovery while the kind is not served: a newer chart may be installed later."""
RETRY_S: Final = 2.0
"""First pause if the API server does not answer whether the kind is served. It doubles up to `ASK_AGAIN_S`."""
MODEL_S: Final = 30.0
"""Minimum time between two models."""
READ_S: Final = 30.0
"""Time after which estimates begin without the stored history, if it cannot be read."""
OUTCOMES_MAX: Final = 1000
"""Most outcomes of estimates that wait to be written."""
TRIES: Final = 3
"""Attempts of a write against other writers, before a pause."""


class StoredHistory(KubeObject, kw_only=True):
    """The RunHistory as it is read: fields that are not valid must not make the whole object unreadable."""

    RESOURCE: ClassVar[Resource] = RunHistory.RESOURCE

    spec: Any = None


class RunRecorder:
    """Records ended gangs. Used by the scheduler's controller during one term.

    Args:
        client: the API server.
        namespace: Muster's own namespace.
        jobs: returns the TrainingJobs that exist, to start a new history when the object was deleted.
        clock: seconds since the epoch.
        request_timeout_s: deadline of one write with all its requests.
        team_key: label of pods that names their team.
        rng: source of jitter.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        jobs: Callable[[], Iterable[TrainingJob]],
        clock: Callable[[], float],
        request_timeout_s: float,
        team_key: str = LABEL_TEAM,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._jobs = jobs
        self._clock = clock
        self._team_key = team_key
        # Without progress marks: a history that cannot be read must not end the process.
        self._informer = Informer(
            client, StoredHistory, namespace=namespace, field_selector=f"metadata.name={RUN_HISTORY}", rng=rng
        )
        self._informer.add_handler(self._stored_changed)
        self._loop = PlanLoop(NAME, fence_s=request_timeout_s, stall_s=2 * IDLE_S)
        self._executor = Executor(NAME, at_once=1, timeout_s=request_timeout_s)
        self._found: StoredHistory | None = None
        self._stored: Runs = {}
        self._runs: Runs = {}
        self._unreadable = 0
        self._ended_jobs: dict[str, tuple[TrainingJob, float | None]] = {}
        self._pod_runs = PodRuns()
        self._stored_starts = StartRecord()
        self._outcomes: list[Outcome] = []
        self._sent: tuple[StartCalibration | None, int] | None = None
        self._modelled: Runs | None = None
        self._model_due = 0.0
        self._awaited_until = clock() + READ_S

    @property
    def known(self) -> bool:
        """Whether the stored history was read, or is not awaited any more. Estimates before that would be wrong."""
        return self._clock() >= self._awaited_until

    @property
    def count(self) -> int:
        """The number of ended gangs."""
        return len(self._runs)

    @property
    def calibration(self) -> Calibration:
        """The calibration of estimates of starts, with all known outcomes."""
        return self._starts.calibration

    @property
    def _starts(self) -> StartRecord:
        return after(self._stored_starts, self._outcomes)

    # Events

    def job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        """Take in a TrainingJob that may have started or ended, or was deleted."""
        outcome = started(old, new) if old is not None and new is not None else None
        if outcome is not None and (outcome.given is not None or outcome.uid in self._starts.late):
            self._count([outcome])
        if old is not None and (new is None or new.uid != old.uid):
            self._ended_jobs[old.uid] = old, self._clock()
        if new is not None and new.status.phase in ("Succeeded", "Failed", "Suspended"):
            self._ended_jobs[new.uid] = new, None

    def pod_ended(self, gang: Gang, record: PodRecord, at: float) -> None:
        """Take in a pod that has finished at this time, or was deleted before and is about to leave the state."""
        self._pod_runs.pod_ended(gang, record, at)

    def look(self, gangs: Mapping[str, Gang]) -> RunTimes | None:
        """Add the gangs that have ended since the last call. Return a new model if one is due and history is known."""
        ended = dict(self._pod_runs.ended(gangs))
        for job, deleted_at in self._ended_jobs.values():
            gang = gangs.get(gang_key(job.namespace, job.name, job.uid))
            run = ended_job(job, likeness_of_job(job, gang, self._team_key), deleted_at)
            if run is not None:
                ended[job.uid] = run
        self._ended_jobs.clear()
        if ended:
            self._runs = merged(self._runs, {uid[:TEXT_MAX]: rounded(run) for uid, run in ended.items()})
            self._loop.wake()
        now = self._clock()
        if not self.known or now < self._model_due:
            return None
        self._count(overdue(self._jobs(), self._starts, now))
        if self._modelled is self._runs and now < self._model_due + IDLE_S:
            return None
        self._model_due, self._modelled = now + MODEL_S, self._runs
        return RunTimes(self._runs.values(), running(gangs, self._jobs(), now)) if self._runs else None

    def _count(self, outcomes: Collection[Outcome]) -> None:
        if len(self._outcomes) > OUTCOMES_MAX:  # they cannot be written
            self._stored_starts = self._starts
            self._outcomes.clear()
        self._outcomes += outcomes
        self._loop.wake(bool(outcomes))

    # The object

    async def run(self) -> None:
        """Read and write the RunHistory until cancelled."""
        await self._until_served()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await complete(NAME, self._informer)
            self._awaited_until = 0.0
            await self._loop.run(self._once)

    async def _until_served(self) -> None:
        asked, retry_s = 0, RETRY_S
        while not (answer := await served(self._client, RunHistory.RESOURCE)):
            if answer is None:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, ASK_AGAIN_S)
                continue
            self._awaited_until = 0.0
            asked += 1
            if asked == 2:
                log.warning(
                    "%s: the API server does not serve %s, so run times are forgotten when this process ends: install "
                    "the CustomResourceDefinition of this version",
                    NAME,
                    RunHistory.RESOURCE.plural,
                )
            await asyncio.sleep(ASK_AGAIN_S if asked > 1 else SETTLE_S)

    def _stored_changed(self, old: StoredHistory | None, new: StoredHistory | None) -> None:
        known = self._found
        if new is not None and (known is None or new.uid != known.uid or is_later(new, known)):
            self._take(new)
        elif new is None and old is not None and known is not None and old.uid == known.uid:
            self._take(None)

    def _take(self, found: StoredHistory | None) -> None:
        """Use this version of the object, or none if it was deleted, with the runs that were not written yet."""
        if found is None and self._found is not None:
            log.warning("%s: %s was deleted; a new history begins with the jobs that exist", NAME, self._found.key)
            for job in self._jobs():
                self.job_changed(None, job)
        unsaved = {uid: run for uid, run in self._runs.items() if self._stored.get(uid) != run}
        spec = found.spec if found is not None else None
        spec = spec if isinstance(spec, dict) else {}
        self._stored, unreadable = read_groups(spec.get("groups"), self._clock())
        self._stored_starts, wrong = read_calibration(spec.get("calibration"))
        unreadable += wrong
        if self._sent is not None and self._sent[0] == to_calibration(self._stored_starts):
            del self._outcomes[: self._sent[1]]  # a write whose answer was lost
            self._sent = None
        if unreadable > self._unreadable:
            log.warning("%s: %d entries of %s are not readable and are dropped", NAME, unreadable, RUN_HISTORY)
        self._found, self._unreadable = found, unreadable
        self._runs = merged(self._stored, unsaved)
        self._loop.wake(self._runs != self._stored)

    async def _once(self) -> Rest:
        """Write the object if there is something new for it."""
        for _ in range(TRIES):
            self._runs, groups = groups_of(self._runs)
            runs, starts, outcomes = self._runs, self._starts, len(self._outcomes)
            if (runs, starts) == (self._stored, self._stored_starts):
                return Rest(SETTLE_S, IDLE_S)
            spec = RunHistorySpec(groups=groups, calibration=to_calibration(starts))
            self._sent = spec.calibration, outcomes
            result = await self._executor.run("writing the RunHistory", partial(self._send, spec))
            if result.value is not None:
                self._found, self._unreadable = result.value, 0
                self._stored, self._stored_starts = runs, starts
                if self._sent is not None:
                    del self._outcomes[:outcomes]
                self._sent = None
                return Rest(WRITE_S, IDLE_S)
            if self._found is None and isinstance(result.error, NotFound):
                return Rest(IDLE_S, IDLE_S)  # the namespace does not exist
            if result.outcome is not WriteOutcome.OVERTAKEN or not await self._read_again():
                break
        return Rest(WRITE_S, 0.0)

    async def _send(self, spec: RunHistorySpec) -> StoredHistory:
        if self._found is None:
            metadata = ObjectMeta(name=RUN_HISTORY, namespace=self._namespace)
            written = await self._client.create(RunHistory(metadata=metadata, spec=spec))
        else:
            written = await self._client.replace(RunHistory(metadata=self._found.metadata, spec=spec))
        return StoredHistory(metadata=written.metadata)

    async def _read_again(self) -> bool:
        """Read the object after another writer was first. Returns whether that worked."""
        try:
            selector = f"metadata.name={RUN_HISTORY}"
            listing = await self._client.list(StoredHistory, self._namespace, field_selector=selector)
        except (ApiError, ConfigError) as error:
            log.warning("%s: reading the RunHistory: %s", NAME, error)
            return False
        self._take(next(iter(listing.items), None))
        return True
