"""Events: the input of the state machine. `key` identifies a process that the supervisor knows."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Union


class Started(NamedTuple):
    """The supervisor has begun to serve."""


class Directed(NamedTuple):
    """The controller's newest directive, as received."""

    directive: Mapping[str, Any]


class Terminated(NamedTuple):
    """SIGTERM: the pod is being deleted."""

    in_contact: bool
    """The controller answered the last request."""


class Tick(NamedTuple):
    """Time has passed."""


class CheckpointsSeen(NamedTuple):
    """Answer to LookForCheckpoints, possibly incomplete: fields of the report."""

    answer: dict[str, Any]


class LauncherStarted(NamedTuple):
    """A launcher, or a rank of launcher none, runs."""

    key: int
    pid: int


class StartFailed(NamedTuple):
    """StartAttempt failed; `program` could not be executed for the reason `error` (errno(3)), or 0 and ""."""

    message: str
    error: int
    program: str


class LauncherEnded(NamedTuple):
    """A launcher's process has ended, with this code and signal."""

    key: int
    outcome: tuple[int, int]


class LauncherOutput(NamedTuple):
    """Answer to ReadLauncherOutput: the launcher's last lines."""

    outcome: tuple[int, int]
    tail: list[str]


class RankAsks(NamedTuple):
    """A `rank` process asks to join an attempt."""

    key: int
    attempt: str
    number: object


class RankStarted(NamedTuple):
    """A rank's command runs."""

    key: int
    pid: int


class RankEnded(NamedTuple):
    """A rank's `rank` process reports how it ended: a wait status, whether it was stopped, errno of its start."""

    key: int
    status: int
    stopped: bool
    error: int


class RankOrphaned(NamedTuple):
    """A rank's `rank` process is gone without a report: the launcher killed it."""

    key: int


class OrphanEnded(NamedTuple):
    """A process whose parent is gone has ended; its wait status, or 0 if that went with its parent."""

    pid: int
    status: int


class RankExamined(NamedTuple):
    """Answer to ExamineRank: what is left of a rank that ended."""

    key: int
    status: int
    orphan: bool
    ended_at: float
    tail: list[str]
    stdout: list[str]
    noted: int | None
    """The exit code in its note."""
    out_of_memory: bool
    """Whether the kernel killed a process of this container for memory since the attempt began."""


class SymptomsSeen(NamedTuple):
    """Answer to LookAtRanks, if something changed: fields of the report."""

    body: dict[str, Any]


class CommandAsked(NamedTuple):
    """A remote shell asks to run a command here, for an attempt if it names one."""

    request: int
    remote_shell: str
    attempt: int | None


class CommandStarted(NamedTuple):
    """A remote command runs."""

    key: int
    pid: int


class CommandOver(NamedTuple):
    """The session of a remote command ended, normally or by a lost connection."""

    key: int
    lost: bool


class ConnectionAsked(NamedTuple):
    """A connection waits to be served by the image's sshd."""

    request: int


class ConnectionStarted(NamedTuple):
    """The image's sshd serves a connection."""

    key: int


class ConnectionEnded(NamedTuple):
    """The sshd of a connection has ended."""

    key: int


class Swept(NamedTuple):
    """Answer to KillEverything: pids that still lived, and whether children are left to be reaped."""

    left: list[int]
    children: bool


Event = Union[
    Started, Directed, Terminated, Tick, CheckpointsSeen, LauncherStarted, StartFailed, LauncherEnded, LauncherOutput,
    RankAsks, RankStarted, RankEnded, RankOrphaned, OrphanEnded, RankExamined, SymptomsSeen, CommandAsked,
    CommandStarted, CommandOver, ConnectionAsked, ConnectionStarted, ConnectionEnded, Swept,
]  # fmt: skip
