"""Runs saves: in the caller's thread, or in the background with a limit on unfinished ones."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Callable

from muster.sdk import reports
from muster.sdk.errors import CheckpointNotSaved, ControllerUnavailable, StaleAttempt
from muster.sdk.saves import files
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.heartbeat import Heartbeat
from muster.sdk.saves.process import process
from muster.sdk.saves.save import Save, Wanted, log
from muster.sdk.saves.saving import Saving

CONFIRM_S = 30.0
"""At exit, time beyond a save's deadline, in which it notices the deadline itself."""


def save(wanted: Wanted, folder: str, write: Callable[[str], object], unfinished_max: int = 1) -> Checkpoint | Saving:
    """Save a checkpoint. In the background, wait first until fewer than `unfinished_max` saves are unfinished."""
    if unfinished_max < 1:
        raise ValueError(f"save_checkpoint(unfinished_max=...) must be at least 1, not {unfinished_max}")
    began = time.monotonic()
    saver = _saver()
    with Heartbeat(wanted.step):
        room = saver.make_room(unfinished_max if wanted.background else 1, wanted.deadline_s)
    if not room:
        return _dropped(wanted, folder, time.monotonic() - began)
    one = Save(wanted, folder)
    one.write(write)
    one.blocked_s = time.monotonic() - began
    if not wanted.background:
        with Heartbeat(wanted.step):
            return one.finish(began)
    handle = Saving(wanted.step, one.path, one.blocked_s)
    saver.add(one, handle)
    return handle


def _dropped(wanted: Wanted, folder: str, blocked_s: float) -> Saving:
    """The outcome of a save for which there was no room in time. Raises it unless it is a background save."""
    message = (
        f"the checkpoint of step {wanted.step} is not saved, and earlier ones still count: earlier saves did not end "
        f"within {wanted.deadline_s:g} s. Save less often, or look at the speed of {folder}"
    )
    error = CheckpointNotSaved(message, temporary=True)
    log(message)
    reports.problem(wanted.step, folder, message)
    process().count(wanted.step)  # other ranks may have room, and names of checkpoints must stay the same on all
    if not wanted.background:
        raise error
    handle = Saving(wanted.step, folder, blocked_s)
    handle._end(None, error)
    return handle


class Saver:
    """The unfinished saves of this process, and the thread that works on them, oldest first."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._condition = threading.Condition()
        self._unfinished: list[tuple[Save, Saving]] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        files.remove_old_copies()

    def make_room(self, unfinished_max: int, deadline_s: float) -> bool:
        """Wait until fewer saves are unfinished; returns False if they are not in time.

        Raises the error of an earlier save, if a later save would meet it too. Other errors, such as an object store
        that was away, are in the log and reported to the controller, and training continues.
        """
        with self._condition:
            if len(self._unfinished) >= unfinished_max:
                log(f"training waits: {len(self._unfinished)} earlier checkpoint(s) are not stored yet")
            room = self._condition.wait_for(lambda: len(self._unfinished) < unfinished_max, deadline_s)
            error, self._error = self._error, None
        if error is not None and not temporary(error):
            raise error
        return room

    def add(self, one: Save, handle: Saving) -> None:
        """Continue a save in the background."""
        with self._condition:
            self._unfinished.append((one, handle))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="muster-save", daemon=True)
                self._thread.start()
                atexit.register(self.drain)
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._unfinished)
                one, handle = self._unfinished[0]
            result, error = None, None
            try:
                result = one.finish(time.monotonic())
                log(one.summary())
            except BaseException as failed:
                error = failed
                log(f"checkpoint of step {handle.step} is not saved: {failed}")
            handle.path = one.path
            with self._condition:
                self._unfinished.pop(0)
                self._error = error or self._error
                handle._end(result, error)
                self._condition.notify_all()

    def drain(self) -> None:
        """At exit, wait for unfinished saves until their deadlines, and name those that are lost."""
        if os.getpid() != self.pid:
            return
        with self._condition:
            if self._unfinished:
                steps = ", ".join(str(handle.step) for _, handle in self._unfinished)
                log(f"waiting until the checkpoints of these steps are stored: {steps}")
            left_s = sum(one.wanted.deadline_s + CONFIRM_S for one, _ in self._unfinished)
            self._condition.wait_for(lambda: not self._unfinished, left_s)
            for _, handle in self._unfinished:
                log(f"lost: the checkpoint of step {handle.step} was not stored before the process ended")


def temporary(error: BaseException) -> bool:
    """Returns whether a later save may succeed although this one failed."""
    if isinstance(error, CheckpointNotSaved):
        return error.temporary
    return isinstance(error, ControllerUnavailable) and not isinstance(error, StaleAttempt)


_current: Saver | None = None


def _saver() -> Saver:
    global _current
    if _current is None or _current.pid != os.getpid():
        _current = Saver()
    return _current
