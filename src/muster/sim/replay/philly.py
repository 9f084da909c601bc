"""The job log of Microsoft's Philly clusters, `cluster_job_log` (msr-fiddle/philly-traces, its README; ATC'19)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from muster.sim.replay.job import Job, Workload, job_of_gpus
from muster.sim.replay.table import BadTrace

_TIME = "%Y-%m-%d %H:%M:%S"


class Machine(msgspec.Struct, frozen=True):
    """A machine of an attempt, and its GPUs that the attempt used."""

    gpus: tuple[str, ...] = ()


class Attempt(msgspec.Struct, frozen=True):
    """One time the job was scheduled. Times may be missing: a logging error, or the job still ran."""

    start_time: str | None = None
    end_time: str | None = None
    detail: tuple[Machine, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """One job."""

    jobid: str
    submitted_time: str
    user: str = ""
    attempts: tuple[Attempt, ...] = ()


def read_jobs(path: Path, text: str, gpus_per_node: int) -> Workload:
    """Return the jobs that ran: for as long as all their attempts together, on the GPUs of the largest one.

    Raises BadTrace. Jobs without a finished attempt or without GPUs are counted only.
    """
    left_out: Counter[str] = Counter()
    found: list[tuple[float, str, float, int, str]] = []
    for line, entry in _entries(path, text):
        submitted = _seconds(path, line, entry.submitted_time, "submitted_time")
        if submitted is None:
            raise BadTrace(path, line, f"job {entry.jobid} has no submitted_time")
        run_s, ran = 0.0, False
        for attempt in entry.attempts:
            started = _seconds(path, line, attempt.start_time, "start_time")
            ended = _seconds(path, line, attempt.end_time, "end_time")
            if started is not None and ended is not None:
                if ended < started:
                    raise BadTrace(path, line, f"an attempt of job {entry.jobid} ends before it starts")
                run_s, ran = run_s + ended - started, True
        gpus = max((sum(len(machine.gpus) for machine in each.detail) for each in entry.attempts), default=0)
        if not ran:
            left_out["never started or still running"] += 1
        elif not gpus:
            left_out["no GPUs"] += 1
        else:
            found.append((submitted, entry.jobid, run_s, gpus, entry.user))
    found.sort()
    jobs: list[Job] = [
        msgspec.structs.replace(job_of_gpus(name, submitted - found[0][0], run_s, gpus, gpus_per_node), user=user)
        for submitted, name, run_s, gpus, user in found
    ]
    return Workload("Philly", jobs, left_out)


def _entries(path: Path, text: str) -> Iterator[tuple[int, Entry]]:
    """Yield each job with the line it starts in; one after the other, so that a bad one can be named."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise BadTrace(path, 1, "is not a JSON list")
    at = _skip(text, at + 1)
    line, counted = 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            raw, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise BadTrace(path, error.lineno, f"is not JSON: {error.msg}") from error
        yield line, _entry(path, line, raw)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise BadTrace(path, 1 + text.count("\n", 0, at), "is not JSON: a comma or ] is missing after this job")


def _entry(path: Path, line: int, raw: Any) -> Entry:
    try:
        return msgspec.convert(raw, Entry)
    except msgspec.ValidationError as error:
        raise BadTrace(path, line, f"is not a job of a Philly log: {error}") from error


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _seconds(path: Path, line: int, value: str | None, field: str) -> float | None:
    """Read a time (the log names no zone: UTC will do, only differences count); None where it is missing."""
    if value is None or value in ("", "None"):
        return None
    try:
        return datetime.strptime(value, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadTrace(path, line, f"{field} is {value!r}, not a time such as 2017-10-07 01:12:09") from None
