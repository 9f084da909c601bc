"""Errors of the command line: their messages and exit codes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.kube.errors import ApiError


class ExitCode(IntEnum):
    """Exit statuses that scripts may rely on (docs/dev/ARCHITECTURE.md, "Exit codes")."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NO_CLUSTER = 3
    NOT_FOUND = 4
    CONFLICT = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


class CliError(Exception):
    """Printed as `error: message` and `hint: hint` on stderr; the process exits with `exit_code`."""

    def __init__(self, message: str, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        """Store the message, the hint and the exit code."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class BadInput(CliError):
    """The user's input cannot be used; exit status 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Store the message and the hint."""
        super().__init__(message, hint, ExitCode.BAD_INPUT)


def from_api_error(error: ApiError) -> CliError:
    """Translate an API server's refusal for the user; if the error has a note, it becomes the hint."""
    from muster.kube import errors

    message = error.message or str(error)
    if isinstance(error, errors.Unauthorized):
        return CliError(
            "the cluster does not accept your credentials: they are wrong or have expired",
            "log in again, or choose another context with --context (kubectl config get-contexts lists them)",
            ExitCode.NO_CLUSTER,
        )
    if isinstance(error, errors.Forbidden):
        return CliError(message, "ask the operator of the cluster for these rights", ExitCode.FAILED)
    if isinstance(error, errors.NotFound):
        if "the server could not find the requested resource" in message or "page not found" in message:
            return CliError(
                "the cluster knows no TrainingJob: Muster is not installed there",
                "install it with helm from deploy/chart/muster, or use a cluster on this machine: muster up",
                ExitCode.NO_CLUSTER,
            )
        return CliError(message, "", ExitCode.NOT_FOUND)
    if isinstance(error, errors.AlreadyExists | errors.Conflict):
        return CliError(message, "", ExitCode.CONFLICT)
    if isinstance(error, errors.Invalid):
        return BadInput(message)
    if isinstance(error, errors.ServerTimeout):
        return CliError(f"the cluster took too long to answer: {message}", "", ExitCode.TIMED_OUT)
    if isinstance(error, errors.Unavailable):
        notes = getattr(error, "__notes__", None) or ["a cluster on this machine is started with: muster up"]
        return CliError(
            f"the cluster cannot be reached: {message}",
            f"check the server's address in your kubeconfig; {notes[0]}",
            ExitCode.NO_CLUSTER,
        )
    return CliError(message)
