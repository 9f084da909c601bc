"""Issue 11.4: `muster logs` streams in bounded memory, ends with its reader, and knows attempts after rotation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from muster.api.training_job import TrainingJob
from muster.cli.ranks import log_stream
from muster.cli.ranks.log_lines import AttemptReader, LogLine
from muster.cli.ranks.log_stream import JobLogs, Selection, Tail
from muster.kube.client import Client
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from tests.support import onejob

TIMEOUT_S = 60


class FakeCluster:
    """An API server with one running job of one pod, whose log is written by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "config"
        self.first_was_read = threading.Event()
        self.queries: list[dict[str, str]] = []
        self.flooded = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == onejob.JOB:
            return web.json_response(onejob.job(phase="Running", attempt=1))
        if request.path == onejob.PODS:
            return web.json_response(onejob.pods(onejob.pod(1, "Running", {"running": {}})))
        self.queries.append(dict(request.query))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\n")
        await asyncio.to_thread(self.first_was_read.wait, TIMEOUT_S)
        for number in range(100_000):
            await response.write(b"%07d " % number + b"x" * 1000 + b"\n")
            self.flooded += 1
        return response

    @contextmanager
    def running(self) -> Iterator[FakeCluster]:
        with onejob.served(self._answer) as server:
            try:
                onejob.write_kubeconfig(self.folder, server)
                yield self
            finally:
                self.first_was_read.set()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path).running() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--follow",)])
def test_lines_come_at_once_and_a_closed_pipe_ends_quietly(cluster: FakeCluster, flags: tuple[str, ...]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "logs", "train", *flags],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    with program.stdout, program.stderr:
        assert program.stdout.readline() == b"[0] first\n"
        cluster.first_was_read.set()
        assert program.stdout.readline().startswith(b"[0] 0000000 x")
        program.stdout.close()
        assert program.wait(TIMEOUT_S) == 0
        assert program.stderr.read() == b""
    assert cluster.flooded < 100_000


@pytest.mark.slow
def test_follower_without_output_notices_that_its_reader_is_gone(cluster: FakeCluster) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "logs", "train", "--follow", "--tail", "7"],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"[0] first\n"
    program.stdout.close()
    assert program.wait(TIMEOUT_S) == 0
    assert cluster.queries[0] == {"container": "worker", "follow": "true", "tailLines": "7"}


def test_tail_is_bounded_in_bytes() -> None:
    tail = Tail(1_000_000)
    for _ in range(80):
        tail.add("x" * (1 << 20))
    assert len(tail.take()) == 64
    assert tail.take() == []


def test_lines_whose_marker_was_rotated_away_belong_to_the_attempt_before_the_next_one() -> None:
    reader = AttemptReader(1, 4, hold=True)
    assert reader.feed(b"lost begin\n") == []
    lines = reader.feed(b"--- muster: attempt 3: node 0 of 2, none, x ---\nthree\n")
    assert [(line.text[:10], line.attempt) for line in lines] == [("lost begin", 2), ("--- muster", 3), ("three", 3)]


def test_lines_without_any_marker_belong_to_the_current_attempt() -> None:
    reader = AttemptReader(1, 4, hold=True)
    assert reader.feed(b"[rank 3] a\n[rank 2] b\n") == []
    lines = reader.end()
    assert [line.attempt for line in lines] == [4, 4]
    assert [line.text for line in lines if line.of_rank(3, 2, named=True)] == ["[rank 3] a"]
    flood = AttemptReader(1, 4, hold=True)
    released = [line for _ in range(300) for line in flood.feed(b"y" * 65535 + b"\n")]
    assert {line.attempt for line in released} == {4}
    assert flood._held == []


ORDER = [{"first": 2, "count": 2}, {"first": 0, "count": 2}]  # of slots, by node rank


@pytest.mark.parametrize("rotated", [False, True])
async def test_lines_of_a_rank_come_from_the_slot_that_the_attempt_recorded(
    rotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 11.4: where the network gives ranks another order than slots, with and without the attempt's marker."""
    metadata = {"name": "train", **onejob.META}
    run = {"attempt": 2, "launcher": "none", "nodes": 4, "rankOrder": ORDER}
    spec = {"replicas": 4, "launcher": "none", "image": "i", "command": ["true"]}
    job = from_dict({"metadata": metadata, "spec": spec, "status": {"attempt": 2, "run": run}}, TrainingJob)
    pods = [
        from_dict({"metadata": {"name": f"train-{slot}", "labels": {"muster.dev/slot": str(slot)}}}, Pod)
        for slot in range(4)
    ]
    read: list[str] = []

    async def log_lines(client: Client, pod: Pod, reader: AttemptReader, **_: Any) -> AsyncIterator[list[LogLine]]:
        read.append(pod.name)
        rank = (2, 3, 0, 1)[int(pod.name[-1])]
        marker = b"" if rotated else b"--- muster: attempt 2: node %d of 4, none, x ---\n" % rank
        yield reader.feed(marker + b"by rank %d\n" % rank)

    monkeypatch.setattr(log_stream, "members", lambda *_: asyncio.sleep(0, pods))
    monkeypatch.setattr(log_stream, "log_lines", log_lines)
    printed: list[tuple[int, str]] = []
    logs = JobLogs(
        client=cast(Client, None),
        job=job,
        wanted=Selection(rank=2),
        sink=lambda slot, texts: printed.extend((slot, text) for text in texts),
    )
    await logs.print_now()
    assert [line for line in printed if not line[1].startswith("---")] == [(0, "by rank 2")]
    assert read[0] == "train-0"
    assert rotated or read == ["train-0"], "no other pod is read"
