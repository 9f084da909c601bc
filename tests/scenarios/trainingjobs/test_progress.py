"""Progress and checkpoints from the SDK to status, and a restart that resumes; old attempts are refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from muster.kube.objects.core import Event
from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import rank_pid
from tests.support.anyserver import BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RESUMING = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    last = muster.last_checkpoint()
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    if muster.rank() == 0:
        (folder / ("began-%d" % muster.attempt())).write_text(str(step))
    (folder / ("pid-%d-%d" % (muster.attempt(), muster.rank()))).write_text(str(os.getpid()))
    while not (folder / "done").exists():
        step += 1
        muster.report(step=step, total_steps=1000, metrics={{"loss": 1.0 / step}})
        if step % 5 == 0:
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)))
        time.sleep(0.05)
"""


@BY_RANKS
async def test_a_restart_resumes_from_the_checkpoint_in_status_and_measures_itself(arena: Arena) -> None:
    folder = str(arena.folder)
    await arena.submit("train", RESUMING.format(folder=folder), checkpoint={"path": f"{folder}/checkpoints"})
    # A checkpoint's own report says its step alone, and may be the first to arrive.
    before = await arena.reaches(
        "train", lambda status: status.last_checkpoint and status.progress and status.progress.metrics
    )
    assert before.last_checkpoint is not None
    assert before.progress is not None
    assert before.progress.total_steps == 1000
    assert before.progress.metrics["loss"] <= 1
    os.kill(rank_pid(arena, 1, 0), signal.SIGKILL)
    status = await arena.reaches("train", lambda status: status.time_to_useful_seconds is not None)
    assert int((arena.folder / "began-2").read_text()) >= before.last_checkpoint.step
    fault = status.faults[-1]
    assert fault.steps_lost is not None
    assert fault.timeline is not None
    stages = [getattr(fault.timeline, name) for name in ("fault", "detected", "ready", "running", "useful")]
    assert stages == sorted(stages)
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)


TOKENS = 3_000_000_000
ABOVE = """
    import json, os, pathlib, ssl, time, urllib.error, urllib.request, base64
    folder = pathlib.Path({folder!r})

    def post(attempt, **body):
        context = ssl.create_default_context(cadata=base64.b64decode(os.environ["MUSTER_CA_DATA"]).decode())
        token = pathlib.Path(os.environ["MUSTER_TOKEN_FILE"]).read_text().strip() if attempt else "none"
        body = body or {{"checkpoint": {{"path": "/x", "step": attempt}}}}
        body = json.dumps(dict(body, attempt=attempt)).encode()
        request = urllib.request.Request(os.environ["MUSTER_URL"] + "/v1/report", body)
        request.add_header("Authorization", "Bearer " + token)
        try:
            return [200, json.load(urllib.request.urlopen(request, timeout=20, context=context))]
        except urllib.error.HTTPError as error:
            return [error.code, json.load(error)]

    if os.environ["RANK"] == "0":
        answers = [post(0), post(7), post(1), post(1, step=2**63), post(1, step=TOKENS, totalSteps=2**62)]
        (folder / "answers").write_text(json.dumps(answers))
"""


async def test_only_the_current_attempt_and_only_pods_may_commit_a_checkpoint(arena: Arena) -> None:
    """Issue 11: also, a step beyond 31 bits (tokens) is progress, and one beyond 63 bits does no harm."""
    await arena.submit("report", ABOVE.replace("TOKENS", str(TOKENS)).format(folder=str(arena.folder)))
    status = await arena.phase("report", "Succeeded")
    without_token, other, current, too_large, tokens = json.loads((arena.folder / "answers").read_text())
    assert without_token[0] == 401
    assert other == [409, {"currentAttempt": 1}]
    assert current == [200, {"checkpointNow": False}]
    assert status.last_checkpoint is not None
    assert (status.last_checkpoint.path, status.last_checkpoint.step) == ("/x", 1)
    assert (too_large[0], tokens[0]) == (400, 200)
    assert status.progress is not None
    assert (status.progress.step, status.progress.total_steps) == (TOKENS, 2**62)


SHARDED = """
    import os, pathlib, subprocess, sys, time
    import muster
    folder = pathlib.Path({folder!r})
    rank = muster.rank()
    late = os.path.join(muster.checkpoint_dir(), "step-00000040-attempt-1")
    if (muster.attempt(), rank) == (2, 0):  # a save of attempt 1 that was not confirmed
        code = "import muster; muster.report(step=40, checkpoint=%r)" % late
        (folder / "late").write_text(subprocess.run([sys.executable, "-c", code], stderr=-1, text=True).stderr)
    loaded = muster.load_checkpoint(lambda files: int(pathlib.Path(files.path).read_text()))
    step = loaded[0] if loaded else 0
    (folder / ("began-%d-%d" % (muster.attempt(), rank))).write_text(str(step))
    (folder / ("pid-%d-%d" % (muster.attempt(), rank))).write_text(str(os.getpid()))
    if muster.attempt() == 1:
        for step in (10, 20, 30):
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)), 3, sharded=True)
        muster.sdk.reports.problem(40, late, "the bucket is away")
    while not (folder / "done").exists():
        step += 1
        muster.report(step=step)
        time.sleep(0.05)
"""


def damage(checkpoint: Path) -> None:
    """Change a shard of rank 1, but not its size."""
    (shard,) = [each for each in checkpoint.rglob("*") if each.is_file() and "rank-00001" in str(each)]
    shard.write_text("31")


async def test_all_ranks_restore_the_newest_checkpoint_that_verifies(arena: Arena) -> None:
    """The damaged one is quarantined, and the attempt continues. It confirms no save of an older attempt."""
    folder = arena.folder
    await arena.submit("train", SHARDED.format(folder=str(folder)), checkpoint={"path": f"{folder}/checkpoints"})
    before = await arena.reaches("train", lambda status: status.last_checkpoint and status.last_checkpoint.step == 30)
    newest = before.checkpoints[0]
    assert (newest.shards, newest.bytes, len(newest.manifest)) == (2, 4, 64)
    damage(Path(newest.path))
    os.kill(rank_pid(arena, 1, 0), signal.SIGKILL)

    after = await arena.reaches("train", lambda status: status.time_to_useful_seconds is not None)

    def began() -> list[str]:
        return [file.read_text() for file in sorted(folder.glob("began-2-*"))]

    await until("both ranks have written where they began", lambda: len([text for text in began() if text]) == 2)
    assert began() == ["20", "20"]
    assert [(each.path, each.step, each.attempt, each.reason) for each in after.quarantined_checkpoints] == [
        (newest.path, 30, 1, "Checksum")
    ]
    assert [each.step for each in after.checkpoints] == [20, 10]
    assert after.run is not None
    assert after.run.checkpoint is not None
    assert after.run.checkpoint.step == 20
    assert after.run.checkpoint.restored is not None
    assert after.checkpoints[0].verified_time is not None
    timeline = after.faults[-1].timeline
    assert timeline is not None
    assert timeline.running is not None
    assert timeline.restored is not None
    assert timeline.useful is not None
    assert timeline.running <= timeline.restored <= timeline.useful
    assert len(after.faults) == 1, "the damage ended no attempt"

    assert "StaleAttempt" in (folder / "late").read_text()

    async def reported() -> bool:
        events = (await arena.client.list(Event, arena.namespace)).items
        found = {each.reason: each.message for each in events}
        return "Checksum" in found.get("CheckpointQuarantined", "") and "away" in found.get("CheckpointNotSaved", "")

    await until("Events report the quarantine, and the checkpoint that was not saved", reported)
    (folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)
