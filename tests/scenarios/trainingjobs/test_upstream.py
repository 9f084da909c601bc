"""What users of the MPI operator and of JobSet ran into when a rank or a worker failed, by upstream number."""

from __future__ import annotations

import psutil
import pytest

from muster.kube.objects.pod import Pod
from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import QUICK, rank_pid, train, until_written
from tests.support.anyserver import BY_RANKS, BY_SCHEDULER
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FAILS = """
    import os, pathlib, sys
    attempt = int(os.environ["MUSTER_ATTEMPT"])
    (pathlib.Path({folder!r}) / ("{name}-%d-%s" % (attempt, os.environ["RANK"]))).touch()
    sys.exit(attempt < 3)
"""

TOGETHER = """
    import os, pathlib, socket, time
    folder, rank, attempt = pathlib.Path({folder!r}), os.environ["RANK"], os.environ["MUSTER_ATTEMPT"]
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == "0":  # as mpirun: it starts nothing before all daemons have called, and waits for them without end
        server = socket.create_server(place)
        peer = server.accept()[0]
    else:
        while True:
            try:
                peer = socket.create_connection(place)
                break
            except OSError:
                time.sleep(0.1)
    peer.sendall(b"here")
    assert peer.recv(4) == b"here"
    (folder / ("met-%s-%s" % (attempt, rank))).touch()
    peer.settimeout(0.1)
    while not (folder / "done").exists():
        try:
            if not peer.recv(1) and not (folder / "done").exists():
                raise SystemExit("lost communication with the other rank")
        except TimeoutError:
            pass
"""


TRIES = """
    import os, pathlib, sys
    (pathlib.Path({folder!r}) / ("tried-%s-%s" % (os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]))).touch()
    sys.exit(os.environ["WORLD_SIZE"] != "4")
"""


@BY_RANKS
async def test_a_failed_rank_is_tried_again_as_often_as_the_limit_says_651(arena: Arena) -> None:
    """MPI operator: backoffLimit 3 with restartPolicy Never tries once. Ours: as often as it says, never more."""
    for name, limit, phase in (("enough", 2, "Succeeded"), ("short", 1, "Failed")):
        await arena.submit(name, FAILS.format(folder=str(arena.folder), name=name), backoffLimit=limit)
        status = await arena.phase(name, phase)
        assert status.restarts is not None
        assert status.restarts.user == 2
        attempts = {int(file.name.split("-")[1]) for file in arena.folder.glob(f"{name}-?-?")}
        assert attempts == set(range(1, limit + 2))


@BY_RANKS
async def test_a_job_whose_worker_crashed_does_not_hang_when_it_is_launched_again_152(arena: Arena) -> None:
    """MPI operator: the new launcher hangs: a worker is not back yet. Ours: an attempt begins when all are there."""
    await arena.submit("train", TOGETHER.format(folder=str(arena.folder)), backoffLimit=0)

    async def met(attempt: int) -> bool:
        return all((arena.folder / f"met-{attempt}-{rank}").exists() for rank in (0, 1))

    await until("the ranks have met", lambda: met(1), 90)
    pods = {pod.metadata.labels["muster.dev/slot"]: pod for pod in await arena.pods("train")}
    next(node for node in arena.nodes if node.name == pods["1"].spec.node_name).lose()
    await until("they have met again", lambda: met(2), 90)
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 2)
    assert status.restarts is not None
    assert (status.restarts.infrastructure, status.restarts.user) == (1, 0)


@BY_SCHEDULER
async def test_a_job_that_waits_for_nodes_uses_up_no_tries_482(arena: Arena) -> None:
    """MPI operator: the launcher fails until all workers are there, and its retries run out. Ours: nothing starts."""
    await arena.submit("train", TRIES.format(folder=str(arena.folder)), replicas=4, backoffLimit=0, unknownLimit=0)
    await arena.reaches(
        "train", lambda status: "waiting for 4 of 4 nodes: needs 4 nodes; the cluster has 3" in status.message
    )
    assert not list(arena.folder.glob("tried-*"))
    arena.add_node()
    status = await arena.phase("train", "Succeeded", 1)
    assert (status.restarts, status.faults) == (None, ())
    assert len(list(arena.folder.glob("tried-1-*"))) == 4


@pytest.mark.parametrize("how", ["deleted", "shut-down"])
@BY_RANKS
async def test_a_worker_that_is_taken_away_restarts_the_others_with_it_574(arena: Arena, how: str) -> None:
    """JobSet: only the worker that was deleted, or whose node shut down, starts again. Ours: all ranks do, as one."""
    await arena.submit("train", train(arena), backoffLimit=0, unknownLimit=0)
    await arena.phase("train", "Running", 1)
    await until_written(arena, 1)
    stayed = psutil.Process(rank_pid(arena, 1, 0))
    pods = {pod.metadata.labels["muster.dev/slot"]: pod for pod in await arena.pods("train")}
    if how == "deleted":
        await arena.client.delete(Pod, pods["1"].name, namespace=arena.namespace)
    else:
        next(node for node in arena.nodes if node.name == pods["1"].spec.node_name).lose()
    await arena.phase("train", "Running", 2)
    await until_written(arena, 2)
    assert not stayed.is_running()
    assert pods["0"].uid in {pod.uid for pod in await arena.pods("train")}
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 2)
    assert status.restarts is not None
    assert (status.restarts.infrastructure, status.restarts.total) == (1, 1)


@pytest.mark.parametrize("limit", [pytest.param(50, marks=BY_RANKS), 0])
async def test_an_evicted_worker_leaves_none_of_the_others_running_for_nothing_647(arena: Arena, limit: int) -> None:
    """MPI operator: it fails the job and lets the other workers run. Ours: it continues or frees all nodes."""
    await arena.submit("train", train(arena), backoffLimit=0, unknownLimit=0, infrastructureLimit=limit)
    await arena.phase("train", "Running", 1)
    await until_written(arena, 1)
    pods = {pod.metadata.labels["muster.dev/slot"]: pod for pod in await arena.pods("train")}
    await arena.client.evict(pods["1"].name, namespace=arena.namespace)
    if limit:
        await arena.phase("train", "Running", 2)
        (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded" if limit else "Failed")
    assert [fault.rule for fault in status.faults] == ["evicted"]
    await arena.submit("next", QUICK, replicas=len(arena.nodes))
    await arena.phase("next", "Succeeded")
    assert not any(pod.status.phase == "Running" for pod in await arena.pods("train"))
