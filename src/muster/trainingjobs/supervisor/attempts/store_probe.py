"""Checks the job's object stores before an attempt starts, with the SDK's own program in this image's Python.

Without these checks the job would fail at its first save and lose all steps until then, or use up its restarts because
its data cannot be read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any, Sequence

from ..basics import ARCHIVE, log

PROGRAM = "muster.sdk.data.probe"
FINDER = "muster.sdk.saves.find"
REFUSED = frozenset({"NoCreateOnly", "NotFound", "WrongURL", "WrongBucket", "WrongRegion"})
"""Reasons of the SDK's errors after which every save, or every read of data, would fail."""
DOUBTED = frozenset({"Forbidden", "WrongEndpoint", "WrongCredentials", "NoCredentials"})
"""The same, if the job names an endpoint, a region or credentials. Otherwise the program may have credentials of its
own, which the SDK does not know."""
_STORE = re.compile(r"(s3|gs|az)://[^?#]+$")
_SLACK_S = 1.0
_MESSAGE_CHARS = 1024
_supervisor = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(_supervisor)))
SDK = os.path.join(os.path.dirname(ARCHIVE), "sdk") if ARCHIVE else _SOURCES


def is_store(url: str) -> bool:
    """Returns whether the SDK opens this URL. Another URL, or one with a query, is for the program alone."""
    return _STORE.match(url) is not None


def store_refusal(url: str, deadline_s: float) -> dict[str, Any] | None:
    """Returns why checkpoints cannot be saved at the URL; None if they can, or if that is not known in time.

    Args:
        url: the job's own URL for checkpoints.
        deadline_s: how long to wait for an answer.
    """
    return _refusal(url, "MUSTER_CHECKPOINT", (), ("checkpoints", "saved"), deadline_s)


def data_refusal(url: str, deadline_s: float) -> dict[str, Any] | None:
    """Returns why the training data at the URL cannot be read; None if it can, or if that is not known in time."""
    found = _refusal(url, "MUSTER_DATA", ("--read",), ("training data", "read"), deadline_s)
    return dict(found, data=True) if found is not None else None


def _refusal(
    url: str, prefix: str, options: Sequence[str], use: tuple[str, str], deadline_s: float
) -> dict[str, Any] | None:
    what, done = use
    said = _ask([PROGRAM, url, "--prefix", prefix, *options, "--json"], deadline_s)
    reason, message = str(said.get("reason", "")), str(said.get("message", ""))[:_MESSAGE_CHARS]
    if said.get("ok"):
        return None
    ours = any(os.environ.get(f"{prefix}_{each}") for each in ("ENDPOINT", "REGION", "CREDENTIALS"))
    if reason in REFUSED or (ours and reason in DOUBTED):
        log(f"{what} cannot be {done} at {url}: {message}")
        return {"path": url, "reason": reason, "message": message}
    log(f"it is not known whether {what} can be {done} at {url}: {message or reason}")
    return None


def stored(url: str, search: Sequence[str], deadline_s: float) -> dict[str, Any] | None:
    """Returns the confirmed checkpoint that the SDK finds at the URL; None without one, or if that is not known."""
    said = _ask([FINDER, url, *search], deadline_s)
    if not said.get("ok"):
        log(f"it is not known which checkpoints {url} holds: {str(said.get('message'))[:_MESSAGE_CHARS]}")
    found = said.get("found")
    return found if isinstance(found, dict) else None


def _ask(program: Sequence[str], deadline_s: float) -> dict[str, Any]:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), SDK))))
    command = [sys.executable or "python3", "-m", *program]
    command += ["--deadline", str(max(_SLACK_S, deadline_s - _SLACK_S))]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=deadline_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"reason": "NoAnswer", "message": f"no answer within {deadline_s:g} s ({type(error).__name__})"}
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    try:  # not the exit code: the supervisor's main thread may have reaped the process
        said = json.loads(lines[-1]) if lines else {}
    except ValueError:
        said = {}
    if not isinstance(said, dict) or "ok" not in said:
        ended = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return {"reason": "NoAnswer", "message": ended[0] if ended else "the check printed nothing"}
    return said
