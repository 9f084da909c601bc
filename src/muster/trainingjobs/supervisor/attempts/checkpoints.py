"""Examines checkpoints, their folder and the data before an attempt starts. Answers in time even if a folder hangs."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from typing import Any, Callable, Sequence

from ..basics import ARCHIVE, log
from ..settings import Settings
from .store_probe import data_refusal, is_store, store_refusal, stored
from .writable import refusal

ANSWER_S = 10.0
"""If a file system does not answer by then (for example NFS), its checkpoints count as unknown."""
AT_ONCE_S = 0.2
OTHERS_SHOWN = 3
_supervisor = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_package = os.path.dirname(os.path.dirname(_supervisor))
RECORDS = os.path.join(
    os.path.join(os.path.dirname(ARCHIVE), "sdk", "muster") if ARCHIVE else _package, "sdk", "records.py"
)
"""Reads the records of checkpoints; part of the SDK."""


class Look:
    """Checks paths in a separate thread, and then calls `done`.

    Args:
        paths: the paths to look for.
        settings: settings of the pod. They name the checkpoint of spec.checkpoint.from, if nodes must search for it.
        done: called in another thread.
    """

    def __init__(self, paths: Sequence[str], settings: Settings, done: Callable[[], None]) -> None:
        self.paths, self._settings = tuple(paths), settings
        self._seen: dict[str, bool | None] = dict.fromkeys(self.paths)
        self._found: dict[str, Any] | None = None
        self._others: list[dict[str, Any]] = []
        self._refusal: dict[str, Any] | None = None
        self._done = threading.Event()
        self._deadline = time.monotonic() + ANSWER_S
        if not self.paths and not settings.checkpoint_dir and not settings.data_url:
            self._done.set()
            return
        threading.Thread(target=self._look, args=(done,), name="look", daemon=True).start()
        self._done.wait(AT_ONCE_S)

    def complete(self, now: float) -> bool:
        """Returns whether the check has ended. If its time is up, paths without an answer count as unknown."""
        if now >= self._deadline:
            self._done.set()
        return self._done.is_set()

    def answer(self) -> dict[str, Any]:
        """Returns this check's fields of the request to the controller."""
        if not self._done.is_set():
            return {"looking": True}
        said: dict[str, Any] = {"looked": dict(self._seen)}
        if self._found is not None:
            said["found"] = self._found
        if self._others:
            said["others"] = self._others
        if self._refusal is not None:
            said["unwritable"] = self._refusal
        return said

    def _look(self, done: Callable[[], None]) -> None:
        for path in self.paths:
            self._seen[path] = is_there(os.path.join(self._settings.workdir, path)) if not _is_url(path) else None
        if self.paths and self._seen[self.paths[0]] is False:
            log(f"the newest checkpoint is not on this node: {self.paths[0]}")
        self._found = self._find()
        if self._found is None and self._settings.slot == "0":  # only one node reports this
            self._others = [_described(each) for each in others(self._settings)]
        self._refusal = self._refused()
        if self._found is None and self._refusal is None:
            self._found = self._find_in_store()
        if self._refusal is None:
            self._refusal = self._unreadable()
        self._done.set()
        done()

    def _refused(self) -> dict[str, Any] | None:
        """Returns why the job's folder or store cannot be written; None if it can be, or if that is not known."""
        folder = self._settings.checkpoint_dir
        if is_store(folder) and self._settings.slot == "0":  # the store is the same for all nodes
            return None if self._has_saved() else store_refusal(folder, self._deadline - time.monotonic())
        if not folder or _is_url(folder):
            return None
        refused = refusal(os.path.join(self._settings.workdir, folder))
        if refused is not None:
            log(f"the checkpoint folder cannot be written: {refused['path']}: {os.strerror(refused['errno'])}")
        return refused

    def _unreadable(self) -> dict[str, Any] | None:
        """Returns why the training data in an object store cannot be read.

        None if it can be, if that is not known, or if the job has saved a checkpoint: it could read its data then.
        """
        env = self._settings
        continues = self._has_saved() or (self._found is not None and self._found.get("uid") == env.job_uid)
        if env.slot != "0" or not is_store(env.data_url) or continues:
            return None
        return data_refusal(env.data_url, self._deadline - time.monotonic())

    def _has_saved(self) -> bool:
        """Returns whether the job's status lists a checkpoint of its own."""
        folder = self._settings.checkpoint_dir.rstrip("/")
        return bool(folder) and any(path.startswith(folder + "/") for path in self.paths)

    def _own(self) -> Any:
        """Returns the job's own confirmed checkpoint, even if its status no longer lists it."""
        folder = self._settings.checkpoint_dir
        if not folder or _is_url(folder):
            return None
        found = records().confirmed(os.path.join(self._settings.workdir, folder))
        return next((each for each in found if each.record.uid == self._settings.job_uid), None)

    def _find_in_store(self) -> dict[str, Any] | None:
        """Returns the checkpoint in the object store that the status does not list: the job's own, or a deleted job's.

        The store is the same for all nodes, so slot 0 searches.
        """
        env = self._settings
        if env.slot != "0" or not is_store(env.checkpoint_dir):
            return None
        if self._has_saved():
            return None
        own = stored(env.checkpoint_dir, ["--uid", env.job_uid], self._deadline - time.monotonic())
        if own is None and env.checkpoint_from_job and not self.paths and is_store(env.checkpoint_root):
            search = ["--job", env.checkpoint_from_job, "--namespace", env.job.partition("/")[0]]
            return stored(env.checkpoint_root, search, self._deadline - time.monotonic())
        return own

    def _find(self) -> dict[str, Any] | None:
        env = self._settings
        found = self._own()
        if found is not None:
            pass  # the job's own checkpoint precedes the one from which it started
        elif env.checkpoint_from_path:
            found = records().at(os.path.join(env.workdir, env.checkpoint_from_path))
        elif env.checkpoint_from_job and env.checkpoint_root and not _is_url(env.checkpoint_root):
            root = os.path.join(env.workdir, env.checkpoint_root)
            found = records().of_job(root, env.job.partition("/")[0], env.checkpoint_from_job)
        else:
            return None
        return _described(found) if found is not None else None


def _described(found: Any) -> dict[str, Any]:
    return {"path": found.path, "job": found.record.job, "uid": found.record.uid, "step": found.record.step}


def others(settings: Settings) -> list[Any]:
    """The newest checkpoints of other jobs where this job's folder is."""
    if not settings.checkpoint_root or _is_url(settings.checkpoint_root):
        return []
    root = os.path.join(settings.workdir, settings.checkpoint_root)
    return list(records().of_others(root, settings.job_uid)[:OTHERS_SHOWN])


def _is_url(path: str) -> bool:
    return "://" in path


def tell_of_others(settings: Settings) -> None:
    """Log other jobs' checkpoints beside this job's folder, if this job starts without a checkpoint."""
    if settings.checkpoint_root:
        threading.Thread(target=_tell_of_others, args=(settings,), name="others", daemon=True).start()


def _tell_of_others(settings: Settings) -> None:
    root = os.path.join(settings.workdir, settings.checkpoint_root)
    for found in others(settings):
        whose = f"job {found.record.job}" if found.record.job else "a program that was not a job, or an earlier version"
        log(
            f"{root} holds a checkpoint of {whose}, step {found.record.step}. This job starts from the beginning, in "
            f"{settings.checkpoint_dir}, and leaves it alone. To continue from it: --from-checkpoint {found.path}"
        )


def is_there(path: str) -> bool | None:
    """Returns whether a path exists; None if that cannot be judged, such as without permission.

    A symlink whose target is gone does not count: the program could not read it.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return None
    return True


def records() -> Any:
    """Load the SDK's module `records` from the file beside this one: the package `muster` is not importable here."""
    spec = importlib.util.spec_from_file_location("muster_records", RECORDS)
    if spec is None or spec.loader is None:
        raise ImportError(RECORDS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
