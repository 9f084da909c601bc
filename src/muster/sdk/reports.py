"""Sends reports to the controller: progress in the background; for a checkpoint it waits for the confirmation.

The wire format is `POST /v1/report` in docs/dev/ARCHITECTURE.md. Network modules are imported on first use, because
every command and every rank imports muster.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import math
import os
import random
import sys
import threading
import time
from typing import Any, Mapping

from muster.sdk import place, records
from muster.sdk.errors import ControllerUnavailable, StaleAttempt
from muster.sdk.saves.layout import plain

PROGRESS_INTERVAL_S = 1.0
REQUEST_TIMEOUT_S = 15.0
EXIT_FLUSH_S = 2.0
DEFAULT_DEADLINE_S = 600.0
MESSAGE_CHARS_MAX = 1024


class Reporter:
    """This process's connection to the controller. Thread-safe; a forked child creates its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.checkpoint_now = False
        self.backfilled = False
        self._stale = ""
        self._largest = -records.STEP_MAX  # step of the confirmed checkpoint
        self._condition = threading.Condition()
        self._pending: dict[str, Any] | None = None
        self._sending = False
        self._leaving = False
        self._thread: threading.Thread | None = None

    def progress(self, report: dict[str, Any]) -> None:
        """Pass the newest progress to the background thread; never waits."""
        with self._condition:
            if self._stale:
                raise StaleAttempt(self._stale)
            self._pending = _merged(self._pending or {}, report)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="muster-report", daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._condition.notify_all()

    def commit(self, report: dict[str, Any], deadline_s: float) -> None:
        """Send a checkpoint and wait for the confirmation. Retries until the deadline."""
        deadline, failures, problem = time.monotonic() + deadline_s, 0, "no time to try"
        while time.monotonic() < deadline:
            error = self._try(report, min(REQUEST_TIMEOUT_S, max(0.1, deadline - time.monotonic())))
            if error is None:
                self._confirmed(report["checkpoint"]["step"])
                return
            problem = str(error)
            failures += 1
            pause = error.after_s or min(10.0, 0.2 * 2.0 ** min(failures, 6))
            time.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), deadline - time.monotonic())))
        raise ControllerUnavailable(f"the checkpoint was not confirmed within {deadline_s:g} s: {problem}")

    def _confirmed(self, step: int) -> None:
        """Warn if a restart would not begin from the new checkpoint, because an earlier one has a larger step."""
        with self._condition:
            older, self._largest = step < self._largest, max(step, self._largest)
        if older:
            print(
                f"muster: a restart would begin from the checkpoint of step {self._largest}, not from this one of step "
                f"{step}: within an attempt the largest step counts. Count steps over all epochs",
                file=sys.stderr,
                flush=True,
            )

    def flush(self) -> None:
        """At exit, wait for a moment until the last progress is sent."""
        if os.getpid() != self.pid:
            return
        with self._condition:
            self._leaving = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._pending is None and not self._sending, EXIT_FLUSH_S)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending is not None)
                report, self._pending, self._sending = self._pending or {}, None, True
            pause = PROGRESS_INTERVAL_S
            try:
                error = self._try(report, REQUEST_TIMEOUT_S)
            except StaleAttempt:
                error = None  # the next call raises it
            with self._condition:
                self._sending = False
                failures = failures + 1 if error else 0
                if error is not None:
                    pause = error.after_s or min(15.0, 2.0 ** min(failures, 4)) * random.uniform(0.5, 1.0)
                    self._pending = _merged(report, self._newer())
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._leaving, pause)
                if self._stale or (self._leaving and failures):
                    return

    def _newer(self) -> dict[str, Any]:
        return self._pending or {}

    def _try(self, report: dict[str, Any], timeout_s: float) -> Retry | None:
        try:
            self._send(report, timeout_s)
        except Retry as error:
            return error
        return None

    def _send(self, report: dict[str, Any], timeout_s: float) -> None:
        try:
            answer = exchange("/v1/report", _finite(report), timeout_s)
        except StaleAttempt as error:
            self._stale = str(error)
            raise
        self.checkpoint_now = bool(answer.get("checkpointNow"))
        self.backfilled = bool(answer.get("backfilled"))


def exchange(path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send a request of this attempt to the controller, and return its answer.

    Raises:
        StaleAttempt: the attempt is over.
        Retry: a temporary failure.
    """
    import http.client
    import ssl
    from urllib.parse import urlsplit

    try:
        url = urlsplit(os.environ["MUSTER_URL"])
        context = ssl.create_default_context(cadata=base64.b64decode(os.environ["MUSTER_CA_DATA"]).decode("ascii"))
        with open(os.environ["MUSTER_TOKEN_FILE"], encoding="ascii") as file:
            token = file.read().strip()
        host, port = url.hostname or "", url.port or 443
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        try:
            headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
            data = json.dumps(dict(body, attempt=place.attempt()), allow_nan=False).encode()
            connection.request("POST", url.path.rstrip("/") + path, data, headers)
            response = connection.getresponse()
            status, after, data = response.status, response.headers.get("Retry-After"), response.read(1 << 20)
        finally:
            connection.close()
        answer = json.loads(data or b"{}") if status in (200, 400, 409) else {}
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        raise Retry(f"{type(error).__name__}: {error}") from error
    if status == 409:
        raise StaleAttempt(
            "attempt {} is over, the job is at attempt {}".format(place.attempt(), answer.get("currentAttempt"))
        )
    if status == 400:
        raise Retry("HTTP 400: {}".format(answer.get("message")), refused=True)
    if status != 200:
        raise Retry(f"HTTP {status}", float(after) if after and after.isdigit() else 0.0)
    return answer


def _merged(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    both = dict(older, **newer)
    if "metrics" in older and "metrics" in newer:
        both["metrics"] = dict(older["metrics"], **newer["metrics"])
    return both


def _finite(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report without NaN and infinite metrics, which JSON cannot represent."""
    if "metrics" not in report:
        return report
    return dict(report, metrics={name: value for name, value in report["metrics"].items() if math.isfinite(value)})


class Retry(Exception):
    """A failure that is usually temporary.

    Attributes:
        after_s: after how many seconds to retry, if the controller named a time; otherwise 0.
        refused: the controller did not accept the request, and would not accept it later.
    """

    def __init__(self, message: str, after_s: float = 0.0, refused: bool = False) -> None:
        super().__init__(message)
        self.after_s, self.refused = after_s, refused


_reporter: Reporter | None = None


def reporter() -> Reporter | None:
    """This process's reporter; None outside Muster."""
    global _reporter
    if not os.environ.get("MUSTER_URL"):
        return None
    if _reporter is None or _reporter.pid != os.getpid():
        _reporter = Reporter()
    return _reporter


def report(
    step: int | None = None,
    total_steps: int | None = None,
    checkpoint: str | None = None,
    metrics: Mapping[str, float] | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> None:
    """Report progress to the controller. On ranks other than 0 this does nothing.

    During a long phase without steps, such as an evaluation, report the same step again. Otherwise the job counts as
    stalled (docs/hangs.md).

    Without `checkpoint` it never waits: the newest values are sent in the background. With `checkpoint` (the path of a
    finished checkpoint; needs `step`) it returns when the controller has confirmed that a restart will begin there. If
    a metric is NaN or infinite, it is left out and not shown.

    Raises:
        ValueError: a step does not fit into 64 bits.
        StaleAttempt: the job has been restarted without this process.
        ControllerUnavailable: a checkpoint was not confirmed within `deadline_s` seconds.
    """
    if checkpoint is not None and step is None:
        raise ValueError("report(checkpoint=...) needs step=, the step it was written at")
    link = reporter()
    if link is None or place.rank() != 0:
        return
    body: dict[str, Any] = {}
    if step is not None:
        body["step"] = _count("step", step)
    if total_steps is not None:
        body["totalSteps"] = _count("total_steps", total_steps)
    if metrics:
        body["metrics"] = {str(name): float(value) for name, value in metrics.items()}
    if checkpoint is None:
        link.progress(body)
    else:
        body["checkpoint"] = {"path": os.fspath(checkpoint), "step": body["step"]}
        link.commit(body, deadline_s)
        _record(body["step"], os.fspath(checkpoint))


def _count(name: str, value: int) -> int:
    """Convert the value to an integer of at most 64 bits. Raises ValueError."""
    number = int(value)
    if abs(number) > records.STEP_MAX:
        raise ValueError(f"report({name}=...): {number} does not fit into 64 bits")
    return number


def commit(
    step: int, path: str, deadline_s: float, details: Mapping[str, Any] | None = None, late: bool = False
) -> None:
    """Report a finished checkpoint and wait for the confirmation. The caller writes the record.

    Args:
        step: the step of the checkpoint.
        path: where it is.
        deadline_s: how long to wait for the controller.
        details: further fields of the report: the checkpoint's size, number of shards and manifest.
        late: whether training may have continued since, so that `step` is not the job's progress.
    """
    link = reporter()
    if link is not None:
        body: dict[str, Any] = {"checkpoint": dict(details or {}, path=path, step=step)}
        link.commit(body if late else dict(body, step=step), deadline_s)


def problem(step: int, path: str, message: str) -> None:
    """Report in the background that a checkpoint was not saved. Never waits and raises nothing."""
    link = reporter()
    if link is not None:
        with contextlib.suppress(StaleAttempt):
            link.progress({"checkpointProblem": {"path": path, "step": step, "message": message[:MESSAGE_CHARS_MAX]}})


def _record(step: int, path: str) -> None:
    """Write the record of a confirmed checkpoint that the program wrote by itself, if it is in the job's folder."""
    folder, path = plain(os.environ.get("MUSTER_CHECKPOINT_DIR", "")), plain(path)
    name = os.path.relpath(path, folder) if folder and "://" not in folder + path else ".."
    if name.split(os.sep)[0] in ("..", "."):
        return
    record = records.new(name, step, place.attempt())
    ours = [each for each in records.read(folder) if each.uid == record.uid]
    known = next((each for each in ours if each.name == name), record)
    with contextlib.suppress(OSError):
        records.write(folder, known._replace(confirmed=record.written))
        reported = [each for each in ours if each.name != name and not each.temporary]
        for each in reported[: -(records.REPORTED_MAX - 1)]:
            records.remove(folder, each)


def should_checkpoint() -> bool:
    """Whether the controller asks for a checkpoint now, because the job is about to be stopped or moved.

    The answers to rank 0's reports carry the request, so it is True on rank 0 only. Broadcast it before you act on it.
    """
    link = reporter()
    return link is not None and link.checkpoint_now


def backfilled() -> bool:
    """Whether the job uses nodes that are reserved for another job, and may be asked to leave at short notice.

    A job that has started there may save checkpoints more often. When it is asked, should_checkpoint() becomes True.
    The answers to rank 0's reports carry this, so it is True on rank 0 only, after the first report.
    """
    link = reporter()
    return link is not None and link.backfilled
