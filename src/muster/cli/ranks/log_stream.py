"""Streams the output of a job's ranks in bounded memory."""

from __future__ import annotations

import asyncio
import dataclasses
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from muster.cli.jobs import describe
from muster.cli.jobs.pods import attempt_of, members, slot_of, slots_in_rank_order
from muster.cli.jobs.watch import get_job
from muster.cli.output import note
from muster.cli.ranks.log_lines import AttemptReader, LogLine, log_lines
from muster.kube.errors import Invalid, NotFound, ServerTimeout, TooManyRequests, Unavailable

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod

STREAMS_MAX = 32
_POLL_S = 1.0
_DRAIN_S = 15.0
_AWAY_S_MAX = 120.0
_TAIL_BYTES_MAX = 64 << 20
_BACKLOG_S = 2.0

Sink = Callable[[int, Sequence[str]], None]
"""Receives a slot and lines of its log."""


class Selection(NamedTuple):
    """The lines to print; None means any."""

    slot: int | None = None
    attempt: int | None = None
    tail: int | None = None
    rank: int | None = None


class Tail:
    """The last lines of a stream, in bounded memory."""

    def __init__(self, lines: int) -> None:
        """Keep at most this many lines, and at most 64 MiB."""
        self._lines: deque[str] = deque(maxlen=lines)
        self._bytes = 0

    def add(self, line: str) -> None:
        """Take the next line."""
        if self._lines.maxlen == 0:
            return
        if len(self._lines) == self._lines.maxlen:
            self._bytes -= len(self._lines.popleft())
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > _TAIL_BYTES_MAX:
            self._bytes -= len(self._lines.popleft())

    def take(self) -> list[str]:
        """Return the lines, and forget them."""
        lines = list(self._lines)
        self._lines.clear()
        self._bytes = 0
        return lines


@dataclasses.dataclass(kw_only=True)
class JobLogs:
    """Reads logs of a job's pods.

    Attributes:
        client: how to reach the cluster.
        job: the job at the time when reading began.
        wanted: which lines.
        sink: receives the lines.
        found: UIDs of pods that had wanted lines, before --tail is applied.
        silent: pods that have not started.
    """

    client: Client
    job: TrainingJob
    wanted: Selection
    sink: Sink
    found: set[str] = dataclasses.field(default_factory=set)
    silent: list[Pod] = dataclasses.field(default_factory=list)
    _warned: bool = False

    async def print_now(self) -> None:
        """Pass on the present content of each pod's log, one pod after the other."""
        pods = self._chosen(await members(self.client, self.job))
        if not pods:
            note(f"'{self.job.name}' has no pods now ({self.job.status.phase})")
        for pod in pods:
            if await self._pod(pod, self.job, follow=False):
                break

    async def follow(self) -> TrainingJob:
        """Pass on the logs of all chosen pods, including those of later attempts, until the job ends.

        Returns the job.
        """
        streams: dict[str, asyncio.Task[bool]] = {}
        heard = time.monotonic()
        try:
            while True:
                try:
                    current = await get_job(self.client, self.job.namespace, self.job.name)
                    pods = self._chosen(await members(self.client, self.job))
                    heard = time.monotonic()
                except (ServerTimeout, TooManyRequests, Unavailable):
                    if time.monotonic() - heard > _AWAY_S_MAX:
                        raise
                    pods = []
                    current = self.job
                for pod in pods:
                    started = any(status.state and not status.state.waiting for status in pod.status.container_statuses)
                    if started and pod.uid not in streams:
                        streams[pod.uid] = asyncio.create_task(self._pod(pod, current, follow=True))
                if describe.finished(current):
                    await _settled(streams.values(), _DRAIN_S)  # a lost node does not close its streams
                    return current
                await _settled(streams.values(), _POLL_S, at_least=True)
                if reader_gone():
                    raise BrokenPipeError
        finally:
            for task in streams.values():
                task.cancel()
            await asyncio.gather(*streams.values(), return_exceptions=True)

    def _chosen(self, pods: list[Pod]) -> list[Pod]:
        chosen = [pod for pod in pods if self.wanted.slot in (None, slot_of(pod))]
        if (
            self.wanted.rank is not None
        ):  # the slot's pod in the current attempt first: earlier attempts may have had others
            home = self.wanted.rank // self.job.ranks
            chosen.sort(key=lambda pod: _node_rank(self.job, slot_of(pod)) != home)
        elif len(chosen) > STREAMS_MAX and not self._warned:
            self._warned = True
            note(f"'{self.job.name}' has {len(chosen)} pods: showing the first {STREAMS_MAX}; choose with --slot")
        return chosen[:STREAMS_MAX] if self.wanted.rank is None else chosen

    async def _pod(self, pod: Pod, job: TrainingJob, *, follow: bool) -> bool:
        """Pass on the wanted lines of a pod's log. Returns whether the wanted rank ran in this pod all the time."""
        wanted = self.wanted
        slot = slot_of(pod)
        home = _node_rank(job, slot)
        filtered = wanted.attempt is not None or wanted.rank is not None
        reader = AttemptReader(attempt_of(pod), describe.attempt(job), hold=wanted.attempt is not None and not follow)
        tail = Tail(wanted.tail) if wanted.tail is not None else None
        backlog_until = time.monotonic() + _BACKLOG_S
        homes: set[int] = set()
        try:
            server_tail = None if filtered else wanted.tail
            async for lines in log_lines(self.client, pod, reader, follow=follow, tail=server_tail):
                mine = [line for line in lines if self._wants(line, home)]
                homes.update(line.node for line in lines if wanted.attempt in (None, line.attempt))
                if mine:
                    self.found.add(pod.uid)
                texts = [line.text for line in mine]
                if tail is not None:
                    for text in texts:
                        tail.add(text)
                    texts = []
                    if follow and (not lines or time.monotonic() > backlog_until):
                        texts, tail = tail.take(), None
                if texts:
                    self.sink(slot, texts)
        except NotFound:
            return False  # the pod was replaced; its successor is printed later
        except Invalid:
            self.silent.append(pod)
        if tail is not None:
            self.sink(slot, tail.take())
        return wanted.rank is not None and homes - {-1} == {wanted.rank // job.ranks}

    def _wants(self, line: LogLine, home: int) -> bool:
        wanted, ranks = self.wanted, self.job.ranks
        if wanted.attempt not in (None, line.attempt):
            return False
        named = self.job.spec.launcher == "mpi" or ranks > 1
        return wanted.rank is None or line.of_rank(wanted.rank, ranks, named=named, home=home)


def _node_rank(job: TrainingJob, slot: int) -> int:
    """The node rank of a slot in the job's current attempt; -1 if it takes no part."""
    slots = slots_in_rank_order(job)
    return slots.index(slot) if slot in slots else -1


def reader_gone() -> bool:
    """Returns whether stdout is a pipe whose reader is gone: `muster logs -f j | head -1`."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # POLLERR is always reported (poll(2))
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


async def _settled(tasks: Iterable[asyncio.Task[bool]], timeout_s: float, *, at_least: bool = False) -> None:
    """Wait for at most `timeout_s` until tasks have ended, and raise their errors.

    With `at_least`, wait the whole time.
    """
    every = list(tasks)
    started = time.monotonic()
    pending = [task for task in every if not task.done()]
    if pending:
        await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in every:
        if task.done():
            task.result()
    left = timeout_s - (time.monotonic() - started)
    if at_least and left > 0:
        await asyncio.sleep(left)
