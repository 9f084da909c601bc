"""The message a container leaves when it ends.

Source: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from __future__ import annotations

from pathlib import Path

from muster.embedded.kubelet.logs.reading import read_tail

_MOST_BYTES = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80


def termination_message(file: Path, policy: str, log: Path, failed: bool) -> str:
    """Returns the termination message: the message file, or the log's end if the policy falls back to that."""
    text = ""
    if file.is_file():
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _MOST_BYTES))
            text = stream.read().decode(errors="replace")
    if not text and failed and policy == "FallbackToLogsOnError":
        text = read_tail(log, _LOG_LINES, _LOG_BYTES)
    return text
