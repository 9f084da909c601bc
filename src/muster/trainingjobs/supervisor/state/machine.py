"""The supervisor's state machine.

state     what happens                            next
idle      hold of attempt A                       idle; reports A: no process of an older attempt runs here
idle      run of a newer attempt than any before  running
running   hold or run of a newer attempt          stopping, then idle, then what is directed
running   hold or run of this or an older one     running (a restarted controller is still gathering its pods)
running   a rank fails (torchrun, none)           stopping, then finished; its exit is reported at once
running   a rank fails (mpi)                      running until mpiexec has stopped the rest; reported at once
running   all ended, or could not start           finished
finished  hold or run of a newer attempt          idle, then what is directed
any       exit of this or a newer attempt         stopping, then this process exits with exitCode
running   SIGTERM                                 running for graceS/2 (to save), or until directed to stop
finished  SIGTERM                                 finished for graceS/2 (to report its end), or until directed to stop
any       SIGTERM                                 stopping, then this process exits with 143

In the state stopping, the supervisor:
1. sends SIGTERM to the ranks, and SIGKILL after graceS;
2. sends SIGTERM to mpiexec and to commands of the remote shell, and waits up to 2 s for them;
3. kills all descendants, until /proc shows none.
"""

from __future__ import annotations

import signal
from typing import Any, Callable, Mapping, NamedTuple

from ..exits import outcome_of
from . import events, instructions
from .attempt import (
    ABORTED,
    CONNECTION_LOST,
    COULD_NOT_START,
    LAUNCHER_EXITED,
    OUT_OF_MEMORY,
    RANK_EXITED,
    RANKS_STOPPED,
    REASONS,
    Attempt,
    AttemptSpec,
    Rank,
)  # fmt: skip
from .events import Event
from .instructions import Instruction
from .mpiabort import find_abort

GRACE_S = 30.0  # used until the controller sets another one
ORPHAN_EXIT_S = 0.2  # time in which a rank may exit by itself (MPI_Abort) after the launcher killed its parent
ORPHAN_KILL_S = 5.0
LOOK_EVERY_S = 1.0  # interval of checks of the ranks
# Exit codes of a rank that Open MPI or MPICH ends when the launcher's connection closes.
LAUNCHER_GONE = (14, 15)


class RemoteShell(NamedTuple):
    """The present access to this node's remote shell: by key, or through the image's sshd."""

    attempt: int = 0
    """The newest attempt that began here."""
    key: bytes = b""
    sshd: bool = False


class Machine:
    """Takes one event at a time and returns what to do. It has no clock: each event comes with the time."""

    def __init__(self) -> None:
        self.state, self.held, self.grace_s = "idle", 0, GRACE_S
        self.attempt: Attempt | None = None  # the attempt in states running, stopping and finished
        self.last: Attempt | None = (
            None  # the newest attempt that ran here; its exit is reported until another one runs
        )
        self.directive: Mapping[str, Any] = {}
        self.then, self.exit_code = "", 0  # the state after stopping
        self.stop_deadline, self.kill_deadline = 0.0, float("inf")
        self.over = False
        self.looked: dict[str, Any] | None = (
            None  # result of the search for checkpoints, for the attempt that this node waits for (directive hold)
        )
        self.leave_at: float | None = None  # after SIGTERM: when to stop running processes
        self.stall: object = None  # the newest stall for which stacks were collected
        self.symptoms: dict[str, Any] = {}
        self._look_at = 0.0
        self._now = self._time = 0.0
        self._todo: list[Instruction] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Started: lambda event: self._report(),
            events.Directed: self._directed,
            events.Terminated: self._terminated,
            events.Tick: self._tick,
            events.CheckpointsSeen: self._checkpoints_seen,
            events.LauncherStarted: self._launcher_started,
            events.StartFailed: self._start_failed,
            events.LauncherEnded: self._launcher_ended,
            events.LauncherOutput: self._launcher_output,
            events.RankAsks: self._rank_asks,
            events.RankStarted: self._rank_started,
            events.RankEnded: self._rank_ended,
            events.RankOrphaned: self._rank_orphaned,
            events.OrphanEnded: self._orphan_ended,
            events.RankExamined: self._rank_examined,
            events.SymptomsSeen: self._symptoms_seen,
            events.CommandAsked: self._command_asked,
            events.CommandStarted: self._command_started,
            events.CommandOver: self._command_over,
            events.ConnectionAsked: self._connection_asked,
            events.ConnectionStarted: self._connection_started,
            events.ConnectionEnded: self._connection_ended,
            events.Swept: self._swept,
        }

    def handle(self, event: Event, now: float, time: float) -> list[Instruction]:
        """Handle an event, and return the instructions in order.

        Args:
            event: what happened.
            now: seconds of a clock that never goes back.
            time: seconds since the epoch, for times in reports.
        """
        self._now, self._time, self._todo = now, time, []
        self._handlers[type(event)](event)
        return self._todo

    # -- state that the supervisor reads between events

    @property
    def busy(self) -> bool:
        """Returns whether the next tick is due soon."""
        return self.state == "stopping" or bool(self.orphans())

    def orphans(self) -> list[int]:
        """Pids of ranks whose parent is gone and whose end is not known yet."""
        return [rank.pid for rank in self._ranks() if rank.alive and rank.orphaned_at is not None and rank.pid]

    def remote_shell(self) -> RemoteShell:
        """Returns who may run commands on this node now."""
        if self.last is None:
            return RemoteShell()
        key = self.last.spec.key if self._open(self.last, "supervisor") else b""
        return RemoteShell(self.last.number, key, self._open(self.attempt, "sshd"))

    def _ranks(self) -> list[Rank]:
        return self.attempt.ranks if self.attempt else []

    def _rank(self, key: int) -> Rank | None:
        return next((rank for rank in self._ranks() if rank.key == key), None)

    def _open(self, attempt: Attempt | None, remote_shell: str) -> bool:
        mpi = attempt is not None and attempt.spec.launcher == "mpi" and attempt.spec.remote_shell == remote_shell
        return mpi and self.state == "running"

    # -- reports

    def _do(self, instruction: Instruction) -> None:
        self._todo.append(instruction)

    def _report(self) -> None:
        """Report the present state to the controller."""
        attempt = self.attempt.number if self.attempt else self.held
        body: dict[str, Any] = {"state": self.state, "attempt": attempt, **self.symptoms}
        if self.attempt is not None:
            body["nodeRank"] = self.attempt.spec.node_rank
        if self.last is not None and self.last.exit is not None:
            body["exit"] = self.last.exit
        if self.looked is not None and self.state == "idle":
            body.update(self.looked)
        self._do(instructions.Report(body))

    def _banner(self, attempt: Attempt, text: str) -> None:
        self._do(instructions.Banner(f"attempt {attempt.number}: {text}"))

    # -- directives

    def _directed(self, event: events.Directed) -> None:
        self.directive = event.directive
        self._stalled(event.directive.get("stall"))
        self._obey()

    def _obey(self) -> None:
        """Carry out the newest directive by the table above."""
        try:
            self.grace_s = max(0.0, float(self.directive.get("graceS", GRACE_S)))
            self._follow()
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            self._do(instructions.Log(f"the controller's directive cannot be understood ({what})"))

    def _stalled(self, number: object) -> None:
        """Collect the stacks if the number of the stall changed.

        The number may also decrease, because a new controller counts from 0.
        """
        if number and number != self.stall and self.state == "running":
            self._do(instructions.CollectStacks())
        self.stall = number

    def _follow(self) -> None:
        if not self.directive or (self.state == "stopping" and self.then == "exit"):
            return
        desired, number = self.directive["desired"], int(self.directive["attempt"])
        ours = self.attempt.number if self.attempt else self.held
        if desired == "exit" and number >= ours:
            self.exit_code = int(self.directive.get("exitCode", 0))
            self._stop("exit", self.grace_s)
        elif number == ours and self.state == "running":
            renewed = (self.directive.get("run") or {}).get("cache")
            if desired == "run" and renewed:
                self._do(instructions.RenewTicket(dict(renewed)))
        elif number > ours and self.state == "running":
            self._stop("idle", self.grace_s)
        elif number > ours and self.state == "stopping":
            self.then = "idle"
        elif desired in ("hold", "run") and (number > ours or self.state == "idle"):
            begin = desired == "run" and number >= ours and (self.last is None or number > self.last.number)
            spec = AttemptSpec(self.directive) if begin else None
            if spec is not None:
                self._begin(Attempt(spec))
            elif number > ours:
                self._hold(number)

    def _hold(self, number: int) -> None:
        """Become idle for an attempt, and search for the checkpoints from which it may start."""
        self.state, self.attempt, self.held = "idle", None, number
        self.looked = None
        self._do(instructions.LookForCheckpoints(tuple(str(path) for path in self.directive.get("look") or ())))

    def _checkpoints_seen(self, event: events.CheckpointsSeen) -> None:
        self.looked = event.answer
        self._report()
        self._obey()

    def _begin(self, attempt: Attempt) -> None:
        """Start this node's part of the attempt."""
        self.state, self.attempt, self.last, self.held = "running", attempt, attempt, attempt.number
        spec = attempt.spec
        where = f"node {spec.node_rank} of {spec.nodes}, {spec.launcher}"
        self._banner(attempt, f"{where}, from {spec.checkpoint or 'the beginning'}")
        self._report()
        self._do(instructions.StartAttempt(spec))

    def _start_failed(self, event: events.StartFailed) -> None:
        if self.attempt is not None:
            problem = (event.error, event.program)
            self._fail(self.attempt, -1, (127, 0), COULD_NOT_START, [event.message], problem=problem)
            self._stop("finished", 0.0)

    # -- launchers

    def _launcher_started(self, event: events.LauncherStarted) -> None:
        if self.attempt is not None:
            self.attempt.launchers[event.key], self.attempt.began = event.pid, True

    def _launcher_ended(self, event: events.LauncherEnded) -> None:
        attempt = self.attempt
        if attempt is None or attempt.launchers.pop(event.key, None) is None:
            return
        if event.outcome != (0, 0) and attempt.exit is None and self.state == "running":
            self._do(instructions.ReadLauncherOutput(event.key, event.outcome))

    def _launcher_output(self, event: events.LauncherOutput) -> None:
        if self.attempt is not None:
            self.attempt.launcher_failed(event.outcome, LAUNCHER_EXITED, event.tail, self._now)

    # -- ranks

    def _rank_asks(self, event: events.RankAsks) -> None:
        attempt = self.attempt
        if attempt is None or self.state != "running" or event.attempt != str(attempt.number):
            self._do(instructions.RefuseRank(event.key))
            return
        try:
            number = int(event.number)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            self._do(instructions.RefuseRank(event.key))
            return
        attempt.ranks.append(Rank(event.key, number))
        spec = attempt.spec
        lingers = spec.launcher == "mpi" and spec.nodes > 1
        self._do(instructions.AdmitRank(event.key, spec.prefix(number), spec.rank_env(), lingers))

    def _rank_started(self, event: events.RankStarted) -> None:
        rank = self._rank(event.key)
        if rank is not None:
            rank.pid = event.pid
            if self.state == "stopping":
                self._signal(rank, signal.SIGTERM)  # `_stop` did not know its pid

    def _rank_ended(self, event: events.RankEnded) -> None:
        rank = self._rank(event.key)
        if rank is not None:
            rank.signalled = rank.signalled or event.stopped
            rank.exec_error = event.error
            self._ended(rank, event.status, orphan=False)

    def _rank_orphaned(self, event: events.RankOrphaned) -> None:
        """The launcher killed a rank's parent, so this process is now the rank's parent."""
        rank = self._rank(event.key)
        if self.attempt is not None and rank is not None and rank.alive and rank.orphaned_at is None:
            rank.orphaned_at = self._now
            self.attempt.launcher_failed((255, 0), RANKS_STOPPED, [], self._now)

    def _orphan_ended(self, event: events.OrphanEnded) -> None:
        for rank in self._ranks():
            if rank.pid == event.pid:
                self._ended(rank, event.status, orphan=True)

    def _ended(self, rank: Rank, status: int, orphan: bool) -> None:
        """A rank has ended by itself or was stopped. Only the first failure of this node is reported."""
        attempt = self.attempt
        if not rank.alive or attempt is None:
            return
        rank.alive = False
        if (status == 0 and not orphan) or attempt.exit is not None or self.state != "running":
            return
        self._do(instructions.ExamineRank(rank.key, rank.pid, status, orphan, self._time))

    def _rank_examined(self, event: events.RankExamined) -> None:
        """Decide what ended the rank: itself, MPI_Abort, the kernel, its launcher or our own signal."""
        attempt, rank = self.attempt, self._rank(event.key)
        if attempt is None or rank is None:
            return
        tail, outcome, mpi = event.tail, outcome_of(event.status), attempt.spec.launcher == "mpi"
        abort, noted, ended_at = find_abort(tail), event.noted, event.ended_at
        if noted is not None and (abort is not None or not (event.orphan or rank.signalled)):
            # the rank had failed before MPI_Abort or our SIGKILL ended it
            said = tail if abort is None else abort.before or event.stdout
            self._rank_failed(attempt, rank, (noted, 0), RANK_EXITED, said, ended_at)
        elif mpi and abort is not None:
            self._fail(attempt, rank.number, (abort.code, 0), ABORTED, abort.said, ended_at)
        elif event.orphan or rank.signalled or (mpi and outcome[0] in LAUNCHER_GONE):
            attempt.launcher_failed((255, 0), RANKS_STOPPED, tail, self._now)
        else:
            memory = outcome[1] == signal.SIGKILL and event.out_of_memory
            self._rank_failed(attempt, rank, outcome, OUT_OF_MEMORY if memory else RANK_EXITED, tail, ended_at)

    def _rank_failed(
        self, attempt: Attempt, rank: Rank, outcome: tuple[int, int], how: str, tail: list[str], ended_at: float
    ) -> None:
        """Report a rank that failed by itself. Without mpiexec, also stop the other ranks of this node."""
        problem = (rank.exec_error, attempt.spec.command[0]) if rank.exec_error else (0, "")
        self._fail(attempt, rank.number, outcome, how, tail, ended_at, problem)
        if attempt.spec.launcher != "mpi":
            self._stop("finished", self.grace_s)

    def _fail(
        self, attempt: Attempt, rank: int, outcome: tuple[int, int], how: str, tail: list[str], at: float = 0.0,
        problem: tuple[int, str] = (0, ""),
    ) -> None:  # fmt: skip
        """Record and report this node's first failure. `problem`: errno and the program that could not be executed."""
        reason = f"{REASONS[how]}: {tail[0]}" if how == COULD_NOT_START else REASONS[how]
        attempt.exit = {
            "attempt": attempt.number, "rank": rank, "code": outcome[0], "signal": outcome[1],
            "time": at or self._time, "tail": tail, "how": how, "reason": reason,
            "errno": problem[0], "program": problem[1],
        }  # fmt: skip
        who = f"rank {rank}" if rank >= 0 else "the node"
        end = f"was killed by signal {outcome[1]}" if outcome[1] else f"ended with exit code {outcome[0]}"
        self._banner(attempt, f"{who} {end} ({reason})")
        self._report()

    def _symptoms_seen(self, event: events.SymptomsSeen) -> None:
        if self.state == "running":
            self.symptoms = event.body
            self._report()

    # -- remote commands

    def _command_asked(self, event: events.CommandAsked) -> None:
        attempt = self.attempt
        if attempt is None or not self._open(attempt, event.remote_shell):
            self._do(instructions.RefuseRequest(event.request, "the attempt is over"))
        elif event.attempt not in (None, attempt.number):
            self._do(instructions.RefuseRequest(event.request, f"attempt {event.attempt} is over"))
        else:
            self._do(instructions.StartCommand(event.request, attempt.spec))

    def _command_started(self, event: events.CommandStarted) -> None:
        if self.attempt is not None:
            self.attempt.commands[event.key], self.attempt.began = event.pid, True

    def _command_over(self, event: events.CommandOver) -> None:
        attempt = self.attempt
        self._do(instructions.CloseCommand(event.key))
        ours = attempt is not None and attempt.commands.pop(event.key, None) is not None
        # after the last rank, Open MPI's launcher ends without notice to its remote processes
        cut = event.lost and attempt is not None and ours and not attempt.ranks_are_done()
        if attempt is not None and cut and self.state == "running":
            attempt.launcher_failed((255, 0), CONNECTION_LOST, [], self._now)

    def _connection_asked(self, event: events.ConnectionAsked) -> None:
        attempt = self.attempt
        if attempt is None or not self._open(attempt, "sshd"):
            self._do(instructions.RefuseRequest(event.request, "the attempt is over"))
        else:
            self._do(instructions.ServeConnection(event.request, attempt.spec))

    def _connection_started(self, event: events.ConnectionStarted) -> None:
        if self.attempt is not None:
            self.attempt.connections.add(event.key)

    def _connection_ended(self, event: events.ConnectionEnded) -> None:
        if self.attempt is not None:
            self.attempt.connections.discard(event.key)

    # -- stopping

    def _stop(self, then: str, grace_s: float) -> None:
        """Begin to stop all processes of the attempt. `then` is the next state: idle, finished or exit."""
        self.then = then
        deadline = self._now + grace_s
        if self.state == "stopping":
            self.stop_deadline = min(self.stop_deadline, deadline)
            return
        quiet = then == "finished" and grace_s == 0
        self.symptoms = {}
        self._do(instructions.ForgetSymptoms())
        self.state, self.stop_deadline, self.kill_deadline = "stopping", deadline, float("inf")
        for rank in self._ranks():
            self._signal(rank, signal.SIGTERM)
        if not quiet:
            self._report()

    def _signal(self, rank: Rank, number: int) -> None:
        """Signal the rank's process group."""
        if rank.alive and rank.pid:
            rank.signalled = True
            self._do(instructions.SignalGroup(rank.pid, number))

    def _tick(self, event: events.Tick) -> None:
        """Do the actions that are due."""
        for rank in self._ranks():
            if rank.alive and rank.orphaned_at is not None:
                self._tick_orphan(rank, self._now - rank.orphaned_at)
        if self.state == "running" and self.attempt is not None:
            self._tick_running(self.attempt)
        if self.leave_at is not None and (self.state == "idle" or self._now >= self.leave_at):
            self._leave()
        if self.state == "stopping":
            self._tick_stopping()

    def _tick_running(self, attempt: Attempt) -> None:
        alive = [rank for rank in attempt.ranks if rank.alive]
        if self._now >= self._look_at:
            self._look_at = self._now + LOOK_EVERY_S
            self._do(instructions.LookAtRanks(tuple((rank.key, rank.number, rank.pid) for rank in alive if rank.pid)))
        ended, launcher = attempt.began and not attempt.roots and not alive, attempt.launcher_exit
        if attempt.exit is None and launcher is not None and (ended or self._now > launcher.due):
            self._fail(attempt, -1, launcher.outcome, launcher.how, launcher.tail)
        if ended:
            self._stop("finished", 0.0)

    def _tick_orphan(self, rank: Rank, age_s: float) -> None:
        """The launcher wanted this rank to stop: give it a moment to exit by itself, then stop it."""
        if not rank.pid:
            rank.alive = False  # its pid is not known; the sweep at the end kills any process that it started
        elif self.state != "running":
            return  # `_stop` has signalled it and waits for the grace period
        elif age_s > ORPHAN_KILL_S:
            self._signal(rank, signal.SIGKILL)
        elif age_s > ORPHAN_EXIT_S and not rank.signalled:
            self._signal(rank, signal.SIGTERM)

    def _tick_stopping(self) -> None:
        attempt = self.attempt
        roots = attempt.roots if attempt else []
        connections = bool(attempt and attempt.connections)  # sshd may still report an exit
        if self.kill_deadline == float("inf"):
            alive = [rank for rank in self._ranks() if rank.alive]
            if alive and self._now < self.stop_deadline:
                return
            for rank in alive:
                self._signal(rank, signal.SIGKILL)
            # mpiexec ends its remote processes on SIGTERM; torchrun would only log the interruption
            ask = attempt is not None and attempt.spec.launcher == "mpi" and bool(roots)
            for pid in roots if ask else []:
                self._do(instructions.SignalGroup(pid, signal.SIGTERM))
            self.kill_deadline = self._now + (2.0 if ask or connections else 0.0)
        if (roots or connections) and self._now < self.kill_deadline:
            return
        self._do(instructions.KillEverything())

    def _swept(self, event: events.Swept) -> None:
        if not event.left and not event.children:
            self._stopped()
        elif self._now > self.kill_deadline + 10.0:
            self.kill_deadline = self._now
            what = f"processes that SIGKILL does not end (a device that hangs?): {event.left}"
            self._do(instructions.Log(what))

    def _stopped(self) -> None:
        """All processes of the attempt have ended."""
        attempt = self.attempt
        if attempt is not None:
            for rank in attempt.ranks:
                rank.alive = False
            attempt.launchers.clear()
            attempt.commands.clear()
            self._do(instructions.CleanUp())
            if self.then == "finished" and attempt.exit is None:
                attempt.exit = {
                    "attempt": attempt.number, "rank": -1, "code": 0, "signal": 0, "time": self._time, "tail": [],
                    "reason": "all ranks exited",
                }  # fmt: skip
            if not attempt.over:  # print this once: after an attempt finished here, a directive to exit stops it again
                self._banner(attempt, "over on this node")
            attempt.over = True
        if self.then == "exit" or (self.then == "idle" and self.leave_at is not None):
            self.over = True
        elif self.then == "idle":
            self._hold(max(self.held, int(self.directive["attempt"])))  # `_checkpoints_seen` then obeys the directive
        else:
            self.state = self.then
            self._report()
            self._obey()

    def _terminated(self, event: events.Terminated) -> None:
        """The pod is being deleted.

        Ranks continue for half of the grace period, as the controller may ask them for a checkpoint.

        If the controller wants no checkpoint, it directs them to stop at once. If it does not answer, the ranks are
        stopped at once. If the attempt has ended, the supervisor waits equally long for a controller that may not know
        of the end.
        """
        self.exit_code = 143
        if self.leave_at is not None:
            self._stop("exit", 0.0)  # a second SIGTERM: stop at once
            return
        waits = self.state == "finished" or (self.state == "running" and event.in_contact)
        self.leave_at = self._now + (self.grace_s / 2 if waits else 0.0)

    def _leave(self) -> None:
        """Stop all processes, then exit."""
        if self.state != "stopping" or self.then != "exit":
            self._stop("exit", self.grace_s / 2)
