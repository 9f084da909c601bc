"""Agreement of all ranks on the checkpoint that they loaded, before the first step.

The ranks of a node write their outcomes to files of the pod. Local rank 0 reports them to the controller
(`POST /v1/restore`) and passes its verdict on. The verdict of an attempt and a path never changes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from typing import Any, Callable, NamedTuple

from muster.sdk import place, reports
from muster.sdk.errors import ControllerUnavailable, StaleAttempt
from muster.sdk.saves.once import wait_for, write_json

REQUEST_TIMEOUT_S = 45.0
"""The controller answers "wait" after 20 s."""
_RETRY_MAX_S = 5.0
_ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (StaleAttempt, ControllerUnavailable, TimeoutError)
}
_MARGIN_S = 5.0
SOURCES = ("bucket", "peer", "disk")


class Outcome(NamedTuple):
    """What happened when one rank, or all ranks of a node, loaded a checkpoint.

    Attributes:
        path: the checkpoint.
        reason: why it cannot be loaded (Checksum, Missing, Size, Manifest, Read, Version); "" if it was loaded.
        message: the same for the user.
        seconds: how long it took.
        bytes_from: bytes read by source: bucket, peer, disk.
    """

    path: str
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    bytes_from: dict[str, int] = {}  # noqa: RUF012 - never changed


class Chosen(NamedTuple):
    """A checkpoint that the controller chose.

    Attributes:
        path: where it is.
        step: its step.
        manifest: SHA-256 of its manifest; "" if the controller does not know it.
    """

    path: str
    step: int
    manifest: str = ""


class Verdict(NamedTuple):
    """What this rank does next.

    Attributes:
        kind: `go`: train; `older`: load that one; `none`: stop, because no checkpoint is left; `fail`: stop, because
            this node's problem does not show that the checkpoint is damaged.
        older: the older checkpoint.
    """

    kind: str
    older: Chosen | None = None


def restore_folder() -> str:
    """The folder that the ranks of this node share during this attempt; "" without Muster."""
    folder = os.environ.get("MUSTER_RESTORE_DIR", "")
    return os.path.join(folder, f"attempt-{place.attempt()}") if folder else ""


def remove_older() -> None:
    """Remove what earlier attempts left in the folder of this node."""
    shared = os.path.dirname(restore_folder())
    if not shared or place.local_rank():
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(shared):
            number = name[len("attempt-") :] if name.startswith("attempt-") else ""
            if number.isdigit() and int(number) < place.attempt():
                shutil.rmtree(os.path.join(shared, name), ignore_errors=True)


def with_controller(outcome: Outcome, call: int, turn: int, deadline_s: float) -> Verdict:
    """Report this rank's outcome, and return the verdict for all ranks.

    Args:
        outcome: this rank's.
        call: number of the call of load_checkpoint in this process.
        turn: number of checkpoints that were tried before in this call.
        deadline_s: how long to wait for other ranks of this node, and for an answer of the controller. While other
            nodes load the checkpoint, the controller answers "wait", and the time is counted again: the job's rule for
            stalls ends that.

    Raises:
        StaleAttempt: the attempt is over.
        ControllerUnavailable: the controller did not answer in time.
        TimeoutError: another rank of this node did not load the checkpoint in time.
    """
    ranks, folder = place.local_world_size(), restore_folder()
    if ranks == 1:
        return _ask(outcome, 1, deadline_s, lambda: None)
    if not folder:
        raise ControllerUnavailable("MUSTER_RESTORE_DIR is not set, so the ranks of this node cannot agree")
    os.makedirs(folder, exist_ok=True)
    base = os.path.join(folder, f"agree-{call}-{turn}")
    write_json(f"{base}-rank-{place.local_rank()}.json", outcome._asdict())
    verdict, waiting = f"{base}-verdict.json", f"{base}-waiting.json"
    if place.local_rank():
        late = "local rank 0 of this node did not pass on the controller's verdict in time"
        said = wait_for(verdict, 2 * deadline_s + _MARGIN_S, late, alive=waiting)  # local rank 0 may wait twice
        if said["kind"] in _ERRORS:
            raise _ERRORS[said["kind"]](said["message"])
        return Verdict(said["kind"], Chosen(*said["older"]) if said["older"] else None)
    try:
        outcome = _of_node(base, ranks, deadline_s)
        found = _ask(outcome, ranks, deadline_s, lambda: write_json(waiting, {}))
    except (StaleAttempt, ControllerUnavailable, TimeoutError) as error:
        write_json(verdict, {"kind": type(error).__name__, "message": str(error)})
        raise
    write_json(verdict, found._asdict())
    return found


def _of_node(base: str, ranks: int, deadline_s: float) -> Outcome:
    """Wait for the outcomes of all ranks of this node, and return them as one."""
    end, outcomes = time.monotonic() + deadline_s, []
    for rank in range(ranks):
        late = f"local rank {rank} of this node did not call load_checkpoint, or did not finish it in time"
        outcomes.append(Outcome(**wait_for(f"{base}-rank-{rank}.json", end - time.monotonic(), late)))
    bad = next((each for each in outcomes if each.reason), outcomes[0])
    total = {source: sum(each.bytes_from.get(source, 0) for each in outcomes) for source in SOURCES}
    return bad._replace(seconds=max(each.seconds for each in outcomes), bytes_from=total)


def _ask(outcome: Outcome, ranks: int, deadline_s: float, waiting: Callable[[], object]) -> Verdict:
    body: dict[str, Any] = {
        "path": outcome.path, "nodeRank": place.node_rank(), "ok": not outcome.reason, "ranks": ranks,
        "seconds": round(outcome.seconds, 3), "bytesFrom": {each: outcome.bytes_from.get(each, 0) for each in SOURCES},
    }  # fmt: skip
    if outcome.reason:
        body.update(reason=outcome.reason, message=outcome.message[: reports.MESSAGE_CHARS_MAX])
    deadline, problem, failures = time.monotonic() + deadline_s, "no time to try", 0
    while time.monotonic() < deadline:
        try:
            said = reports.exchange("/v1/restore", body, min(REQUEST_TIMEOUT_S, max(0.1, deadline - time.monotonic())))
        except reports.Retry as error:
            problem, failures = str(error), failures + 1
            if error.refused:
                break
            pause = error.after_s or min(_RETRY_MAX_S, 0.1 * 2.0 ** min(failures, 6)) * random.uniform(0.5, 1.0)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            continue
        kind = said.get("verdict")
        if kind == "older":
            older = said["checkpoint"]
            return Verdict("older", Chosen(older["path"], older.get("step", 0), older.get("manifest", "")))
        if kind in ("go", "none", "fail"):
            return Verdict(kind)
        waiting()
        deadline, failures = time.monotonic() + deadline_s, 0
    raise ControllerUnavailable(f"the ranks did not agree on the checkpoint {outcome.path} in time: {problem}")


def by_program(outcome: Outcome, agree: Callable[[bool], bool] | None) -> bool:
    """Without Muster: returns whether all ranks loaded the checkpoint."""
    return bool(agree(not outcome.reason)) if agree is not None else not outcome.reason
