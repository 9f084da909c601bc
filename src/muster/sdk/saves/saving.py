"""The handle of a save that continues in the background."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.sdk.saves.checkpoint import Checkpoint


class Saving:
    """A checkpoint that is being uploaded while training continues.

    Attributes:
        step: the step of the checkpoint.
        path: where it will be. A number may be appended if the same step was saved before.
        seconds_blocked: how long training waited: for room for this save, and for `write`.
    """

    def __init__(self, step: int, path: str, seconds_blocked: float) -> None:
        self.step = step
        self.path = path
        self.seconds_blocked = seconds_blocked
        self._ended = threading.Event()
        self._result: Checkpoint | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "unfinished" if not self.done else f"failed: {self._error}" if self._error else "saved"
        return f"<Saving step={self.step} path={self.path!r} {state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, with or without success."""
        return self._ended.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None while it is unfinished, and if it succeeded."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> Checkpoint:
        """Wait until the checkpoint is confirmed. Every save ends by itself after its `deadline_s`.

        Raises:
            TimeoutError: it did not end within `timeout_s`.
            StaleAttempt, ControllerUnavailable, CheckpointNotSaved: as `save_checkpoint`.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"the checkpoint of step {self.step} was not saved within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _end(self, result: Checkpoint | None, error: BaseException | None) -> None:
        self._result, self._error = result, error
        self._ended.set()
