"""Executes the instructions of the state machine: starts processes, writes files and the log, answers other threads."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, Iterable, Iterator, Optional

from .attempts.checkpoints import Look, tell_of_others
from .attempts.leftovers import remove_leftovers
from .attempts.programs import CannotStart
from .attempts.start import Launch, environment, prepare, ssh_folder
from .basics import log, write_all
from .exits import signal_group
from .processes import Child, descendants, exists, oom_kills
from .ranks.door import RankDoor
from .ranks.environment import write_rank_env
from .ranks.output import OutputPump, Streams
from .ranks.shared import TICKET_VARIABLE, remove_shared, replace_ticket, share
from .ranks.stacks import log_in_background
from .ranks.symptoms import RankSeen, Symptoms
from .ranks.watch import RankWatch
from .remoteshell.commands import RemoteCommands
from .remoteshell.wire import ShellRefused
from .settings import Settings
from .state import events, instructions
from .state.events import Event
from .state.instructions import Instruction

OnExit = Callable[[Child], Optional[Event]]


class Executor:
    """Used by the main thread. Answers to instructions are the events that `carry_out` returns.

    Args:
        settings: settings of the pod.
        folder: the supervisor's private folder.
        door: the socket where ranks wait for their environment.
        commands: remote shells that wait for their commands.
        report: sends a report to the controller.
        wake: called in another thread when `checkpoints` has a result.
        follow_ticket: called with the file of the attempt's ticket for the node cache; "" after the attempt.
    """

    def __init__(
        self, settings: Settings, folder: str, door: RankDoor, commands: RemoteCommands,
        report: Callable[[dict[str, Any]], None], wake: Callable[[], None],
        follow_ticket: Callable[[str], None] = lambda path: None,
    ) -> None:  # fmt: skip
        self._follow_ticket = follow_ticket
        self._settings, self._folder, self._report, self._wake = settings, folder, report, wake
        self._door, self._commands = door, commands
        self._since = time.time()
        self.output = OutputPump()
        self.watch = RankWatch(folder)
        self._symptoms = Symptoms(self.watch)
        self.streams: dict[int, Streams] = {}  # output of ranks, by the key of their `rank` process
        self._launcher_streams: dict[int, Streams] = {}
        self._children: dict[int, tuple[Child, OnExit]] = {}  # by pid, until they are reaped
        self._running: dict[int, Child] = {}  # remote commands with an open session
        self._look: Look | None = None
        self._seen: dict[str, Any] = {}  # the last answer that the machine received
        self._sshd: list[str] = []
        self._shared: dict[str, str] = {}  # variables of ranks that name files of this node
        self._oom_kills = 0  # kernel's count before the attempt
        self._methods: dict[type, Callable[[Any], Iterable[Event] | None]] = {
            instructions.Report: lambda todo: self._report(todo.body),
            instructions.Log: lambda todo: log(todo.message),
            instructions.Banner: lambda todo: write_all(1, f"--- muster: {todo.text} ---\n".encode("utf-8", "replace")),
            instructions.LookForCheckpoints: self._look_for_checkpoints,
            instructions.CollectStacks: lambda todo: log_in_background(os.environ.get("POD_UID", "")),
            instructions.StartAttempt: self._start_attempt,
            instructions.RenewTicket: self._renew_ticket,
            instructions.ReadLauncherOutput: self._read_launcher_output,
            instructions.AdmitRank: self._admit_rank,
            instructions.RefuseRank: lambda todo: self._door.refuse(todo.key),
            instructions.ExamineRank: self._examine_rank,
            instructions.LookAtRanks: self._look_at_ranks,
            instructions.ForgetSymptoms: lambda todo: self._symptoms.forget(),
            instructions.StartCommand: self._start_command,
            instructions.ServeConnection: self._serve_connection,
            instructions.RefuseRequest: self._refuse_request,
            instructions.CloseCommand: self._close_command,
            instructions.SignalGroup: lambda todo: signal_group(todo.pid, todo.signal),
            instructions.KillEverything: self._kill_everything,
            instructions.CleanUp: self._clean_up,
        }

    def carry_out(self, instruction: Instruction) -> Iterable[Event]:
        """Carry out one instruction; returns the events that answer it."""
        return self._methods[type(instruction)](instruction) or ()

    # -- events that no other thread posts

    def reap(self) -> Iterator[Event]:
        """Collect every process that has ended: started ones, and orphans that this process inherited."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self._children:
                yield events.OrphanEnded(pid, status)
                continue
            child, on_exit = self._children.pop(pid)
            child.finish(status)
            event = on_exit(child)
            if event is not None:
                yield event

    def gone(self, pids: Iterable[int]) -> Iterator[Event]:
        """Return those of these processes that no longer exist. Their wait status is lost with their parents."""
        return (events.OrphanEnded(pid, 0) for pid in pids if not exists(pid))

    def checkpoints(self, now: float) -> Iterator[Event]:
        """Return the result of a search for checkpoints, once, when it is complete."""
        if self._look is not None and self._look.complete(now):
            answer = self._look.answer()
            if answer != self._seen:
                self._seen = answer
                yield events.CheckpointsSeen(answer)

    # -- processes

    def _spawn(self, argv: list[str], env: dict[str, str], on_exit: OnExit, **pipes: int) -> Child:
        """Start a process in a new session."""
        popen: subprocess.Popen[bytes] = subprocess.Popen(
            argv, env=env, cwd=self._settings.workdir, start_new_session=True, **pipes  # type: ignore[call-overload]
        )  # fmt: skip
        child = Child(popen)
        self._children[popen.pid] = (child, on_exit)
        return child

    def _start_attempt(self, todo: instructions.StartAttempt) -> Iterator[Event]:
        spec = todo.spec
        self._oom_kills = oom_kills()
        if spec.node_rank == 0 and not spec.checkpoint:
            tell_of_others(self._settings)
        write_rank_env(spec)
        try:
            self._shared = share(spec, self._folder)
            self._follow_ticket(self._shared.get(TICKET_VARIABLE, ""))
            launches, self._sshd = prepare(spec, self._settings, self._folder)
            for launch in launches:
                child = self._launch(launch)
                yield events.LauncherStarted(child.key, child.pid)
        except CannotStart as error:
            yield events.StartFailed(str(error), error.error, error.program)
        except OSError as error:
            yield events.StartFailed(str(error), 0, "")

    def _renew_ticket(self, todo: instructions.RenewTicket) -> None:
        path = self._shared.get(TICKET_VARIABLE, "")
        if path:
            try:
                replace_ticket(path, todo.cache)
            except OSError as error:
                log(f"the ticket for the node cache was not renewed: {error}")
                return
            self._follow_ticket(path)

    def _launch(self, launch: Launch) -> Child:
        """Start a launcher, or a rank of launcher none."""

        def ended(child: Child) -> Event:
            child.close()
            return events.LauncherEnded(child.key, child.outcome())

        streams, (out, err) = self._pipes(launch.prefix)
        try:
            child = self._spawn(launch.argv, launch.env, ended, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        finally:
            os.close(out)
            os.close(err)
        self._launcher_streams[child.key] = streams
        return child

    def _pipes(self, prefix: str) -> tuple[Streams, tuple[int, int]]:
        """Create streams into the log, and the write ends for the process."""
        (out, out_end), (err, err_end) = self.output.pipe(1, prefix), self.output.pipe(2, prefix)
        return Streams(out, err), (out_end, err_end)

    def _read_launcher_output(self, todo: instructions.ReadLauncherOutput) -> list[Event]:
        streams = self._launcher_streams[todo.key]
        streams.err.closed.wait(0.5)
        return [events.LauncherOutput(todo.outcome, list(streams.err.tail) or list(streams.out.tail))]

    def _kill_everything(self, todo: instructions.KillEverything) -> list[Event]:
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reaped = list(self.reap())
        return [*reaped, events.Swept(left, bool(self._children))]

    def _clean_up(self, todo: instructions.CleanUp) -> None:
        self.streams.clear()
        self._launcher_streams.clear()
        shutil.rmtree(ssh_folder(self._folder), ignore_errors=True)
        remove_shared(self._folder)
        self._follow_ticket("")
        remove_leftovers(self._since)
        self.watch.forget()

    # -- ranks

    def _admit_rank(self, todo: instructions.AdmitRank) -> None:
        self.streams[todo.key], ends = self._pipes(todo.prefix)
        reply: dict[str, Any] = {"env": {**todo.env, **self._shared}, "cwd": self._settings.workdir}
        if todo.lingers:
            reply["lingers"] = True
        self._door.admit(todo.key, reply, ends)

    def _examine_rank(self, todo: instructions.ExamineRank) -> list[Event]:
        streams = self.streams[todo.key]
        tail, noted = streams.last_lines(), self.watch.exit_code(todo.pid)
        stdout, out_of_memory = list(streams.out.tail), oom_kills() > self._oom_kills
        return [
            events.RankExamined(
                todo.key, todo.status, todo.orphan, todo.ended_at, tail, stdout, noted, out_of_memory
            )
        ]  # fmt: skip

    def _look_at_ranks(self, todo: instructions.LookAtRanks) -> list[Event]:
        now = time.monotonic()
        self.watch.tick(now)
        seen = [RankSeen(number, pid, self.streams[key].trace()) for key, number, pid in todo.ranks]
        return [events.SymptomsSeen(self._symptoms.body)] if self._symptoms.look(seen, now) else []

    def _look_for_checkpoints(self, todo: instructions.LookForCheckpoints) -> list[Event]:
        self._look = Look(todo.paths, self._settings, self._wake)
        self._seen = self._look.answer()
        return [events.CheckpointsSeen(self._seen)]

    # -- remote commands

    def _start_command(self, todo: instructions.StartCommand) -> list[Event]:
        request = self._commands.take(todo.request)
        stdin, stdout, stderr = request.pipes
        argv, env = ["/bin/sh", "-c", request.command], environment(todo.spec, self._folder)
        try:
            child = self._spawn(argv, env, self._command_ended, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            request.answer.put(error)
            return []
        self._running[child.key] = child
        request.answer.put(child)
        return [events.CommandStarted(child.key, child.pid)]

    def _command_ended(self, child: Child) -> None:
        if child.key not in self._running:  # its session had ended
            child.close()

    def _close_command(self, todo: instructions.CloseCommand) -> None:
        child = self._running.pop(todo.key)
        if child.ended.is_set():
            child.close()
        else:
            signal_group(child.pid, signal.SIGKILL)

    def _serve_connection(self, todo: instructions.ServeConnection) -> list[Event]:
        request = self._commands.take(todo.request)
        stdin, stdout, _ = request.pipes

        def ended(child: Child) -> Event:
            child.close()
            return events.ConnectionEnded(child.key)

        _, errors = self.output.pipe(2, "[sshd] ")
        try:
            env = environment(todo.spec, self._folder)
            child = self._spawn(self._sshd, env, ended, stdin=stdin, stdout=stdout, stderr=errors)
        except OSError as error:
            request.answer.put(error)
            return []
        finally:
            os.close(errors)
        request.answer.put(child)
        return [events.ConnectionStarted(child.key)]

    def _refuse_request(self, todo: instructions.RefuseRequest) -> None:
        self._commands.take(todo.request).answer.put(ShellRefused(todo.reason))
