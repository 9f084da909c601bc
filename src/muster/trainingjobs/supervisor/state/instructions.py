"""Instructions: the output of the state machine. If an instruction has an answer, its docstring names the event."""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from .attempt import AttemptSpec


class Report(NamedTuple):
    """Replace the report to the controller."""

    body: dict[str, Any]


class Log(NamedTuple):
    """Write a line about Muster itself to the container's log."""

    message: str


class Banner(NamedTuple):
    """Mark an attempt's boundary in the container's log."""

    text: str


class LookForCheckpoints(NamedTuple):
    """Search for these checkpoints: CheckpointsSeen, and again when the search is complete."""

    paths: tuple[str, ...]


class CollectStacks(NamedTuple):
    """Write the stacks of the ranks to the log."""


class StartAttempt(NamedTuple):
    """Check that this node can run the attempt, and start its part: LauncherStarted, StartFailed."""

    spec: AttemptSpec


class RenewTicket(NamedTuple):
    """Replace the attempt's ticket for the node cache, which expires."""

    cache: dict[str, Any]


class ReadLauncherOutput(NamedTuple):
    """Read the last lines of a launcher that failed: LauncherOutput."""

    key: int
    outcome: tuple[int, int]


class AdmitRank(NamedTuple):
    """Give a `rank` process its environment and its output. `lingers`: it waits for a moment after exit code 127."""

    key: int
    prefix: str
    env: dict[str, str]
    lingers: bool


class RefuseRank(NamedTuple):
    """The attempt of a `rank` process does not run."""

    key: int


class ExamineRank(NamedTuple):
    """Read the last output and the note of a rank that ended: RankExamined."""

    key: int
    pid: int
    status: int
    orphan: bool
    ended_at: float


class LookAtRanks(NamedTuple):
    """Look for symptoms of ranks, given as (key, number, pid), and end those that noted a failure: SymptomsSeen."""

    ranks: tuple[tuple[int, int, int], ...]


class ForgetSymptoms(NamedTuple):
    """Forget the observations about ranks, because the attempt no longer runs."""


class StartCommand(NamedTuple):
    """Run the command of a request as part of the attempt: CommandStarted."""

    request: int
    spec: AttemptSpec


class ServeConnection(NamedTuple):
    """Start the image's sshd for the connection of a request: ConnectionStarted, ConnectionEnded."""

    request: int
    spec: AttemptSpec


class RefuseRequest(NamedTuple):
    """Refuse a remote command or a connection."""

    request: int
    reason: str


class CloseCommand(NamedTuple):
    """End a remote command whose session is over."""

    key: int


class SignalGroup(NamedTuple):
    """Send a signal to a process group."""

    pid: int
    signal: int


class KillEverything(NamedTuple):
    """Send SIGKILL to every process below the supervisor, and reap: Swept."""


class CleanUp(NamedTuple):
    """Remove what the ended attempt left on this node: keys, shared memory, notes of ranks."""


Instruction = Union[
    Report, Log, Banner, LookForCheckpoints, CollectStacks, StartAttempt, RenewTicket, ReadLauncherOutput, AdmitRank,
    RefuseRank, ExamineRank, LookAtRanks, ForgetSymptoms, StartCommand, ServeConnection, RefuseRequest, CloseCommand,
    SignalGroup, KillEverything, CleanUp,
]  # fmt: skip
