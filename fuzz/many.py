"""Many seeds, side by side in processes of their own: what was found so far is kept whatever ends the run."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing import connection
from pathlib import Path

import msgspec

from fuzz.modes import Mode
from fuzz.run import Outcome


class Finding(msgspec.Struct, frozen=True):
    """A seed in which an invariant did not hold, and the command that shows it."""

    seed: int
    violation: str
    again: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of many seeds.

    Attributes:
        first: the first seed.
        seeds: the number of seeds, including those that an earlier run kept.
        events: steps of tasks; a fault may fall between any two.
        requests: seen by the API servers.
        virtual_hours: of all runs together.
        cpu_s: of this run, in all its processes.
        wall_s: of this run.
        digest: of all traces in the order of their seeds; equal for two equal runs.
        findings: the seeds in which an invariant did not hold.
    """

    first: int
    seeds: int
    events: int
    requests: int
    virtual_hours: float
    cpu_s: float
    wall_s: float
    digest: str
    findings: tuple[Finding, ...]


def many(
    first: int, seeds: int | None, seconds: float, jobs: int, kept: Path | None, mode: Mode
) -> Iterator[Finding | Summary]:
    """Run seeds; yield what is found as it is found, then the summary. Ctrl-C and SIGTERM end it early.

    Args:
        first: the first seed.
        seeds: how many; None for as many as `seconds` allow.
        seconds: for how long, where `seeds` does not say.
        jobs: processes.
        kept: a file with a line for each seed that was run: those in it are not run again.
        mode: what a seed stands for.
    """
    started = time.monotonic()
    end = first + seeds if seeds is not None else None
    outcomes = {one.seed: one for one in _read(kept) if one.seed >= first and (end is None or one.seed < end)}
    yield from (_finding(one, mode) for one in outcomes.values() if one.violation)
    stop_at = started + seconds if end is None else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workers = [_Worker(first + number, jobs, end, stop_at, frozenset(outcomes), mode) for number in range(jobs)]
    try:
        while busy := [worker.said for worker in workers if not worker.said.closed]:
            ready = connection.wait(busy)
            for said in busy:
                line = _next(said) if said in ready else b""
                if not line:
                    continue
                outcome = msgspec.json.decode(line, type=Outcome)
                outcomes[outcome.seed] = outcome
                _keep(kept, line)
                if outcome.violation:
                    yield _finding(outcome, mode)
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.terminate()
    for worker in workers:
        worker.process.join()
    yield _summary(first, outcomes, mode, time.monotonic() - started)


class _Worker:
    """A process that runs every `stride`-th seed, and what it says: an outcome each."""

    def __init__(
        self, first: int, stride: int, end: int | None, stop_at: float | None, known: frozenset[int], mode: Mode
    ) -> None:
        self.said, says = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(
            target=_work, args=(says, first, stride, end, stop_at, known, mode), daemon=True
        )
        self.process.start()
        says.close()


def _work(
    says: connection.Connection,
    first: int,
    stride: int,
    end: int | None,
    stop_at: float | None,
    known: frozenset[int],
    mode: Mode,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # after each seed the collector then skips the modules and their caches
    for seed in count(first, stride):
        if (end is not None and seed >= end) or (stop_at is not None and time.monotonic() > stop_at):
            break
        if seed not in known:
            says.send_bytes(msgspec.json.encode(mode.run(seed)))
            gc.collect()  # runs leave circles behind, and collect none themselves


def _next(said: connection.Connection) -> bytes:
    """What a process says next; nothing when it has ended, however it did."""
    try:
        return said.recv_bytes()
    except EOFError:
        said.close()
        return b""


def _read(kept: Path | None) -> list[Outcome]:
    """What an earlier run kept. A last line that was cut short is taken away."""
    if kept is None or not kept.exists():
        return []
    whole, _, rest = kept.read_bytes().rpartition(b"\n")
    if rest:
        kept.write_bytes(whole + b"\n" if whole else b"")
    return [msgspec.json.decode(line, type=Outcome) for line in whole.splitlines()]


def _keep(kept: Path | None, line: bytes) -> None:
    if kept is not None:
        with kept.open("ab") as file:
            file.write(line + b"\n")


def _finding(outcome: Outcome, mode: Mode) -> Finding:
    return Finding(outcome.seed, outcome.violation, f"{mode.command} --seed {outcome.seed} --trace")


def _summary(first: int, outcomes: dict[int, Outcome], mode: Mode, wall_s: float) -> Summary:
    ran = [outcomes[seed] for seed in sorted(outcomes)]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Summary(
        first=first,
        seeds=len(ran),
        events=sum(one.steps for one in ran),
        requests=sum(one.requests for one in ran),
        virtual_hours=round(sum(one.virtual_s for one in ran) / 3600, 1),
        cpu_s=round(sum(one.ru_utime + one.ru_stime for one in used), 1),
        wall_s=round(wall_s, 1),
        digest=hashlib.blake2b("".join(one.digest for one in ran).encode(), digest_size=16).hexdigest(),
        findings=tuple(_finding(one, mode) for one in ran if one.violation),
    )
