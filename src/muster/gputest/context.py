"""The context of a test: its back end, its remaining time, and methods that report results."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from muster.gputest.backend import Backend, Device, Sizes
from muster.gputest.backends import open_backend
from muster.gputest.codes import Code
from muster.gputest.wire import Event, Failed, Measured, Opened, Request, Said, Setup, Skipped

TIMED_ROUNDS = 5
_REPEATED_MAX = 1000
_FAILURES_MAX = 4


class Context:
    """The context of one worker, used by one test after the other. Its methods may be called from several threads."""

    def __init__(self, setup: Setup, emit: Callable[[Event], None]):
        self.setup = setup
        self.request = Request(test="", work_s=0, deadline_s=0)
        self._emit_unlocked = emit
        self._lock = threading.Lock()
        self._backend: Backend | None = None
        self._began = 0.0
        self._failures: dict[tuple[str, str], int] = {}

    def begin(self, request: Request) -> None:
        """Begin a test: later results belong to it."""
        self.request, self._began, self._failures = request, time.monotonic(), {}

    @property
    def backend(self) -> Backend:
        """The back end, opened at first use. Raises BackendError."""
        if self._backend is None:
            self.say(None, "opening the driver")
            self._backend = opened = open_backend(self.setup.backend, self.setup.fault)
            self._emit(Opened(opened.name, opened.timing_margin, opened.devices(), opened.versions()))
            self.say(None, "")
        return self._backend

    @property
    def sizes(self) -> Sizes:
        """The amounts of data and work at this level."""
        return self.backend.sizes(self.setup.level)

    def release(self) -> None:
        """Free memory between tests."""
        if self._backend is not None:
            self._backend.release()

    def time_left(self, share: float = 1.0) -> bool:
        """Return whether this share of the test's work time has not passed yet."""
        return time.monotonic() - self._began < self.request.work_s * share

    def say(self, device: Device | None, text: str) -> None:
        """Report the current activity, for progress and for the message about a hang."""
        self._emit(Said(device.uuid if device else "", text))

    def figure(self, device: Device | None, name: str, value: float) -> None:
        """Report a figure of figures.py, as a plain number whatever a library measured it with.

        Raises ValueError for NaN and infinity, which JSON cannot represent.
        """
        plain = float(value)
        if not math.isfinite(plain):
            raise ValueError(f"{name} is {plain}")
        self._emit(Measured(device.uuid if device else "", name, plain))

    def fail(self, device: Device | None, code: Code, message: str) -> None:
        """Report a failure. After four of a kind on a GPU, further ones are dropped."""
        gpu = device.uuid if device else ""
        self._failures[gpu, code] = count = self._failures.get((gpu, code), 0) + 1
        if count <= _FAILURES_MAX:
            self._emit(Failed(code, gpu, message))

    def skip(self, reason: str) -> None:
        """Report that there is nothing to test here."""
        self._emit(Skipped(reason))

    def each_gpu(self, test: Callable[[Device], Any], devices: Sequence[Device] | None = None) -> list[Any]:
        """Run a function on all devices concurrently. Returns the results in the order of devices."""
        chosen = self.backend.devices() if devices is None else devices

        def one(device: Device) -> Any:
            self.say(device, self.request.test)
            result = test(device)
            self.say(device, "")
            return result

        with ThreadPoolExecutor(len(chosen)) as pool:
            return list(pool.map(one, chosen))

    def rate(self, devices: Sequence[int], amount: float, work: Callable[[], object]) -> float:
        """Return the amount per second: the median of several rounds after warm-up, because clocks rise under load.

        It must not run beside other threads of this process, because waiting for them would count as the device's time.
        """
        backend = self.backend
        work()
        took_s = backend.timed(devices, work)
        times = min(_REPEATED_MAX, max(1, round(backend.round_s / took_s)))

        def round_() -> None:
            for _ in range(times):
                work()

        if times > 1:
            round_()
        return amount * times / median(backend.timed(devices, round_) for _ in range(TIMED_ROUNDS))

    def _emit(self, event: Event) -> None:
        with self._lock:
            self._emit_unlocked(event)
