"""Issue 11.3: a rank that noted its failure, and whose exit status is lost because its parent was killed too."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.kube.connection.pki import CertificateAuthority
from muster.trainingjobs.supervisor.loop import Supervisor
from muster.trainingjobs.supervisor.ranks.hook import FAILING
from muster.trainingjobs.supervisor.ranks.output import Stream, Streams
from muster.trainingjobs.supervisor.settings import Settings
from muster.trainingjobs.supervisor.state.attempt import Attempt, AttemptSpec, Rank

RUN = {
    "launcher": "mpi", "command": ["train"], "ranksPerNode": 1, "nodeRank": 1, "nodes": 2, "key": "5f" * 32,
}  # fmt: skip
ABORT = b"Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """In the middle of an attempt; none of its threads runs."""
    ca = base64.b64encode(CertificateAuthority.create().certificate).decode()
    names = dict.fromkeys(Settings.REQUIRED, "x")
    env = {**names, "MUSTER_URL": "https://127.0.0.1:1", "MUSTER_CA_DATA": ca, "POD_IP": "127.0.0.1"}
    made = Supervisor(Settings(env), str(tmp_path))
    made.machine.state = "running"
    made.machine.attempt = made.machine.last = Attempt(AttemptSpec({"attempt": 1, "run": RUN}))
    yield made
    made.door._socket.close()
    made.shells._socket.close()


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("noted", [True, False])
def test_its_note_or_its_lines_tell_its_exit_code(supervisor: Supervisor, noted: bool) -> None:
    attempt = supervisor.machine.attempt
    assert attempt is not None
    out, err = (Stream(os.open(os.devnull, os.O_RDONLY), 1, b"") for _ in range(2))
    err.feed(b"ValueError: no such batch\n" + ABORT)
    for stream in (out, err):
        stream.close()
    rank = Rank(7, 1)
    supervisor.executor.streams[rank.key] = Streams(out, err)
    rank.pid, rank.orphaned_at = ended_process(), time.monotonic()
    attempt.ranks.append(rank)
    if noted:
        (Path(supervisor.executor.watch.folder) / f"{FAILING}{rank.pid}").write_text("1 3\n")
    supervisor.tick()
    assert not rank.alive
    assert attempt.exit is not None
    assert (attempt.exit["rank"], attempt.exit["code"]) == (1, 3 if noted else 7)
    assert attempt.exit["reason"] == ("rank exited" if noted else "rank called MPI_Abort")
    assert attempt.exit["tail"][0] == "ValueError: no such batch"
