"""Training jobs of the cluster of tests/support/everymetric.py."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster.api.names import LABEL_TEAM
from tests.support.apiserver import Api
from tests.support.everyconfig import GPUS, JOBS, JOBS_PATH, MERGE, Json
from tests.support.waiting import LONG_TIMEOUT_S, eventually

_OF_THE_TEAM: Final[Json] = {
    "metadata": {"labels": {LABEL_TEAM: JOBS}},
    "spec": {
        "nodeSelector": {LABEL_TEAM: JOBS},
        "tolerations": [{"key": LABEL_TEAM, "operator": "Equal", "value": JOBS, "effect": "NoSchedule"}],
    },
}
"""What the webhook adds to pods of the namespace; the embedded API server calls no webhooks."""

_TRAINING: Final = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    loaded = muster.load_checkpoint(lambda files: int(pathlib.Path(files.path).read_text()))
    step = loaded[0] if loaded else 0
    (folder / ("pid-%d-%d" % (muster.attempt(), muster.rank()))).write_text(str(os.getpid()))
    while True:
        step += 1
        muster.report(step=step, total_steps=100000)
        if step % 10 == 0:
            write = lambda path, text=str(step): pathlib.Path(path).write_text(text)
            muster.save_checkpoint(step, write, sharded=True, background=True, unfinished_max=9)
        time.sleep(0.1)
"""


class Jobs:
    """Jobs in the namespace of the team.

    Args:
        api: the API server, as an administrator.
        folder: of the jobs' files.
        logs: returns the ends of all logs, for a test that fails.
    """

    def __init__(self, api: Api, folder: Path, logs: Callable[[], str]) -> None:
        self._api = api
        self._folder = folder
        self._logs = logs

    def train(self, name: str, nodes: int = 1, **spec: Any) -> None:
        """Submit a job that reports steps and saves checkpoints, and wait until it runs. Killed ranks do not end it."""
        folder = self._folder / name
        folder.mkdir()
        program = folder / "program.py"
        program.write_text(textwrap.dedent(_TRAINING.format(folder=str(folder))))
        lasting = {"unknownLimit": 1000, "checkpoint": {"path": str(folder / "c")}}
        self.submit(name, nodes, command=[sys.executable, str(program)], **lasting, **spec)
        self.until_running(name)

    def submit(self, name: str, nodes: int, **spec: Any) -> None:
        """Create a job."""
        body = {"replicas": nodes, "gpusPerNode": GPUS, "ranksPerNode": 1, "launcher": "none", "image": "none"}
        meta = {"name": name, "namespace": JOBS}
        kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
        spec = {**body, "stopGraceSeconds": 1, "template": _OF_THE_TEAM, **spec}
        self._api.create(JOBS_PATH, {**kind, "metadata": meta, "spec": spec})

    def status(self, name: str) -> Json:
        """The status of a job."""
        found: Json = self._api.get(f"{JOBS_PATH}/{name}").get("status", {})
        return found

    def until_running(self, name: str, attempt: int = 1) -> None:
        """Wait until this attempt, or a later one, has reported a step."""

        def running() -> bool:
            status = self.status(name)
            return status.get("attempt", 0) >= attempt and bool(self.pids(name, status["attempt"]))

        try:
            eventually(f"{name} runs", running, LONG_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status(name)}\n{self._logs()}") from None

    def pids(self, name: str, attempt: int) -> list[int]:
        """Process ids of the ranks of an attempt."""
        found = (file.read_text() for file in (self._folder / name).glob(f"pid-{attempt}-*"))
        return [int(text) for text in found if text]

    def kill_rank(self, name: str) -> None:
        """A rank of the running attempt dies; wait for the next attempt."""

        def killed() -> int:
            attempt: int = self.status(name)["attempt"]
            for pid in self.pids(name, attempt):
                with contextlib.suppress(ProcessLookupError):  # the attempt has just failed by itself
                    os.kill(pid, signal.SIGKILL)
                    return attempt
            return 0  # its ranks have not started

        self.until_running(name, eventually(f"a rank of {name} is there", killed, LONG_TIMEOUT_S) + 1)

    def annotate(self, name: str, **annotations: str) -> None:
        """Change annotations of a job."""
        patch = {"metadata": {"annotations": annotations}}
        code, answer, _ = self._api.send("PATCH", f"{JOBS_PATH}/{name}", patch, content_type=MERGE)
        assert code == 200, answer
