"""Progress and checkpoints from the SDK to status, and a restart that resumes; old attempts are refused."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import rank_pid
from tests.support.anyserver import BY_RANKS

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
