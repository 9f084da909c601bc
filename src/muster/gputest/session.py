"""Runs tests in a worker process, and kills it if a test exceeds its deadline: a hang is a finding.

After a hang or a crash, the other tests run in a new worker. After a hang, tests that need GPUs are skipped, because
they would wait for the same device.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import msgspec

from muster.gputest.codes import REMEDIES, Code
from muster.gputest.levels import HOST_TESTS
from muster.gputest.report import Failure, Outcome, ProbeRun
from muster.gputest.wire import Event, Failed, Finished, Measured, Opened, Request, Said, Setup, Skipped

START_S = 60.0
"""Time limit for a worker's start, which is not part of its first test: a busy host does not mean a faulty GPU."""

_KILL_S = 5.0
_TAIL_LINES = 8

_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""As many threads as GPUs compute references on the host; with one library thread each, results are reproducible."""


class Session:
    """One run, with its `tests`, `failures` and figures so far. `watch` receives every event."""

    def __init__(self, setup: Setup, watch: Callable[[Request, Event], None]):
        self.opened: Opened | None = None
        self.unavailable: str = ""
        """Why GPUs cannot be tested; "" if they can."""
        self.tests: list[ProbeRun] = []
        self.failures: list[Failure] = []
        self.figures: dict[str, dict[str, float]] = {}
        self._setup = setup
        self._watch = watch
        self._worker: _Worker | None = None
        self._closed_to_gpus = ""

    def run(self, requests: tuple[Request, ...]) -> None:
        """Run all tests, each within its deadline. Leaves only processes behind that cannot be killed."""
        try:
            for request in requests:
                if self._closed_to_gpus and request.test not in HOST_TESTS:
                    self._end(request, "skipped", 0.0, self._closed_to_gpus)
                else:
                    self._run(request)
        finally:
            self._drop()

    def _run(self, request: Request) -> None:
        if self._worker is None:
            self._worker = _Worker(self._setup)
            if not self._worker.starts():
                self._hung(msgspec.structs.replace(request, deadline_s=START_S), {"": "start of a process"}, START_S)
                return
        began = time.monotonic()
        worker, busy, failed, reason = self._worker, dict[str, str](), len(self.failures), ""
        worker.ask(request)
        while True:
            try:
                event = worker.events.get(timeout=max(0.0, began + request.deadline_s - time.monotonic()))
            except queue.Empty:
                self._hung(request, busy, time.monotonic() - began)
                return
            if event is None:
                self._crashed(request, worker.last_words(), time.monotonic() - began)
                return
            self._watch(request, event)
            match event:
                case Opened():
                    self.opened = self.opened or event
                case Said(gpu, text):
                    busy.pop(gpu, None)
                    if text:
                        busy[gpu] = text
                case Measured(gpu, figure, value):
                    self.figures.setdefault(gpu, {})[figure] = value
                case Failed(code, gpu, message):
                    self._fail(request, code, gpu, message)
                case Skipped():
                    reason = event.reason
                case Finished():
                    break
        took_s = time.monotonic() - began
        if event.code is not None:
            self._closed_to_gpus = event.error
            self._fail(request, event.code, "", event.error)
            if event.code in (Code.NO_GPU, Code.NOT_INSTALLED):
                self.unavailable = event.error
            self._end(request, "failed", took_s, event.error)
        elif event.error:
            self._fail(request, Code.CRASHED, "", event.error)
            self._end(request, "crashed", took_s, event.error)
        else:
            outcome: Outcome = "skipped" if reason else "passed"
            self._end(request, "failed" if len(self.failures) > failed else outcome, took_s, reason)

    def _hung(self, request: Request, busy: dict[str, str], took_s: float) -> None:
        doing = "; ".join(f"{gpu or 'the node'}: {text}" for gpu, text in sorted(busy.items()))
        message = f"no answer after {request.deadline_s:.1f} s" + (f", last heard of {doing}" if doing else "")
        if not self._drop():
            message += "; the process cannot be killed: it waits inside the kernel"
        self._fail(request, Code.HUNG, next(iter(busy)) if len(busy) == 1 else "", message)
        if request.test not in HOST_TESTS:
            self._closed_to_gpus = f"not run: {request.test} hung"
        self._end(request, "hung", took_s, message)

    def _crashed(self, request: Request, last_words: str, took_s: float) -> None:
        self._drop()
        self._fail(request, Code.CRASHED, "", last_words)
        self._end(request, "crashed", took_s, last_words)

    def _drop(self) -> bool:
        worker, self._worker = self._worker, None
        return worker is None or worker.kill()

    def _fail(self, request: Request, code: Code, gpu: str, message: str) -> None:
        failure = Failure(test=request.test, code=code, gpu=gpu, message=message, remedy=REMEDIES[code])
        self.failures.append(failure)

    def _end(self, request: Request, outcome: Outcome, took_s: float, message: str) -> None:
        ended = ProbeRun(
            name=request.test, outcome=outcome, duration_s=took_s, deadline_s=request.deadline_s, message=message
        )
        self.tests.append(ended)


class _Worker:
    """A worker's process, in a process group with all that it starts."""

    def __init__(self, setup: Setup):
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "muster.gputest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT | os.environ,
            start_new_session=True,
        )
        self._input, self._output, self._errors = map(
            _pipe, (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        # Daemon threads: a process that cannot be killed must not keep this one from ending.
        self._readers = [
            threading.Thread(target=self._read, args=(self._output,), daemon=True),
            threading.Thread(target=self._listen, args=(self._errors,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self._write(setup)

    def starts(self) -> bool:
        """Wait until the worker listens; False if that takes too long. If it dies, a later read shows that."""
        try:
            if self.events.get(timeout=START_S) is None:
                self.events.put(None)
        except queue.Empty:
            return False
        return True

    def ask(self, request: Request) -> None:
        """Send a request to run a test."""
        self._write(request)

    def last_words(self) -> str:
        """Return how the worker ended, waiting for that."""
        code = self._process.wait()
        self._readers[1].join(_KILL_S)
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the worker ended with {ended}: " + (" | ".join(self._last) or "it said nothing")

    def kill(self) -> bool:
        """Kill the worker and what it started. Returns False if it does not end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(_KILL_S)
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        self._errors.close()

    def _write(self, message: Setup | Request) -> None:
        with suppress(BrokenPipeError):  # the worker has ended; the end of its events shows that
            self._input.write(msgspec.json.encode(message) + b"\n")
            self._input.flush()

    def _read(self, stream: IO[bytes]) -> None:
        decoder = msgspec.json.Decoder(Event)
        for line in stream:
            self.events.put(decoder.decode(line))
        self.events.put(None)

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._last.append(line.decode(errors="replace").rstrip())


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # Popen was called with pipes
    return stream
