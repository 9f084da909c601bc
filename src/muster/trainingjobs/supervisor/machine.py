"""The supervisor's state machine.

state     what happens                            next
idle      hold of attempt a                       idle; reports a: nothing of an older attempt lives here
idle      run of a newer attempt than any before  running
running   hold or run of a newer attempt          stopping, then idle, then what is directed
running   hold or run of this or an older one     running (a restarted controller is still gathering its pods)
running   a rank fails (torchrun, none)           stopping, then finished; its exit is reported at once
running   a rank fails (mpi)                      running until mpiexec has stopped the rest; reported at once
running   all ended, or could not start           finished
finished  hold or run of a newer attempt          idle, then what is directed
any       exit of this or a newer attempt         stopping, then this process exits with exitCode
running   SIGTERM                                 running for graceS/2 (the last checkpoint), or until directed to stop
finished  SIGTERM                                 finished for graceS/2 (to report its end), or until directed to stop
any       SIGTERM                                 stopping, then this process exits with 143
stopping: SIGTERM to the ranks, graceS later SIGKILL; mpiexec and shells; every descendant until /proc shows none.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import time
from typing import Any, Callable

from .attempts.attempt import Attempt, CannotStart
from .attempts.checkpoints import Look, tell_of_others
from .attempts.launchers import mpi_command, mpi_program, torchrun_command, torchrun_program
from .attempts.leftovers import remove_leftovers
from .attempts.programs import check_length, check_program
from .basics import ARCHIVE, SELF, log, write_all
from .controller.link import ControllerLink
from .exits import outcome_of, signal_group
from .processes import Child, descendants, oom_kills
from .ranks.door import Rank, RankDoor
from .ranks.environment import write_rank_env
from .ranks.mpiabort import find_abort
from .ranks.output import OutputPump
from .ranks.stacks import log_in_background
from .ranks.symptoms import Symptoms
from .ranks.watch import RankWatch
from .remoteshell.commands import RemoteCommands
from .remoteshell.server import ShellServer
from .remoteshell.sshd import server_command
from .settings import Settings

GRACE_S = 30.0  # before the controller has said another
ORPHAN_EXIT_S = 0.2  # a rank whose launcher has stopped it may still end by itself (MPI_Abort) in this time
ORPHAN_KILL_S = 5.0
# MPI libraries end a rank so when the launcher's connection closes (Open MPI, MPICH).
LAUNCHER_GONE = (14, 15)
SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class Supervisor:
    """The state machine. Everything here runs in the main thread; other threads hand it functions through `post`."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self.settings, self.folder, self.ssh_folder = settings, folder, os.path.join(folder, "ssh")
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.post = self.events.put
        self.children: dict[int, Child] = {}
        self.state, self.held, self.grace_s = "idle", 0, GRACE_S
        self.attempt: Attempt | None = None  # of states running, stopping and finished
        self.last: Attempt | None = None  # the newest that ran here; its exit is reported until another runs
        self.directive: dict[str, Any] = {}
        self.then, self.exit_code = "", 0  # what follows stopping
        self.stop_deadline, self.kill_deadline = 0.0, float("inf")
        self.over = False
        self.looked: Look | None = None  # at checkpoints, for the attempt that this node holds
        self.since = time.time()
        self.leave_at: float | None = None  # since SIGTERM: when to stop what still runs
        self.output = OutputPump()
        self.watch = RankWatch(folder)
        self.stall: object = None  # the newest one that stacks were collected for
        self.symptoms, self.look_at = Symptoms(self.watch), 0.0
        self.door = RankDoor(os.path.join(folder, "ranks"), self.post, self)
        self.commands = RemoteCommands(self)
        self.shells = ShellServer(settings, self.commands)
        self.link = ControllerLink(settings, lambda directive: self.post(lambda: self.directed(directive)))

    def run(self) -> int:
        """Serves until directed to exit; returns the exit code."""
        self.report()
        for thread in (self.output, self.door, self.shells, self.link):
            thread.start()
        while not self.over:
            busy = self.state == "stopping" or any(r.orphaned_at and r.alive for r in self.ranks())
            with contextlib.suppress(queue.Empty):
                self.events.get(timeout=0.05 if busy else 1.0)()
            self.reap()
            self.tick(time.monotonic())
        return self.exit_code

    def report(self) -> None:
        """Tell the controller what is so now."""
        attempt = self.attempt.number if self.attempt else self.held
        body = {
            "state": self.state,
            "attempt": attempt,
            "shellPort": self.shells.port,
            "address": self.settings.address,
            **self.symptoms.body,
        }
        if self.attempt is not None:
            body["nodeRank"] = self.attempt.node_rank
        if self.last is not None and self.last.exit is not None:
            body["exit"] = self.last.exit
        if self.looked is not None and self.state == "idle":
            body.update(self.looked.answer())
        self.link.report(body)

    def ranks(self) -> list[Rank]:
        """Of the current attempt."""
        return self.attempt.ranks if self.attempt else []

    # -- directives

    def directed(self, directive: dict[str, Any]) -> None:
        """Take the controller's newest directive."""
        self.directive = directive
        self.stalled(directive.get("stall"))
        try:
            self.grace_s = max(0.0, float(directive.get("graceS", GRACE_S)))
            self.follow()
        except (KeyError, TypeError, ValueError) as error:
            log(f"the controller's directive cannot be understood ({type(error).__name__}: {error})")

    def stalled(self, number: object) -> None:
        """Collects the stacks if the controller counts another stall; a new controller starts again from 0."""
        if number and number != self.stall and self.state == "running":
            log_in_background(os.environ.get("POD_UID", ""))
        self.stall = number

    def follow(self) -> None:
        """Do what the newest directive asks and the table allows."""
        if not self.directive or (self.state == "stopping" and self.then == "exit"):
            return
        desired, number = self.directive["desired"], int(self.directive["attempt"])
        ours = self.attempt.number if self.attempt else self.held
        if desired == "exit" and number >= ours:
            self.exit_code = int(self.directive.get("exitCode", 0))
            self.stop("exit", self.grace_s)
        elif number > ours and self.state == "running":
            self.stop("idle", self.grace_s)
        elif number > ours and self.state == "stopping":
            self.then = "idle"
        elif desired in ("hold", "run") and (number > ours or self.state == "idle"):
            begin = desired == "run" and number >= ours and (self.last is None or number > self.last.number)
            attempt = Attempt(self.directive) if begin else None
            if attempt is not None:
                self.begin(attempt)
            elif number > ours:
                self.hold(number)

    def hold(self, number: int) -> None:
        """Be idle for an attempt, and look which of the checkpoints it may start from are here."""
        self.state, self.attempt, self.held = "idle", None, number
        paths = [str(path) for path in self.directive.get("look") or ()]
        self.looked = Look(paths, self.settings, lambda: self.post(self.report))
        self.report()

    def begin(self, attempt: Attempt) -> None:
        """Start the attempt's part of this node."""
        self.state, self.attempt, self.last, self.held = "running", attempt, attempt, attempt.number
        self.banner(
            f"attempt {attempt.number}: node {attempt.node_rank} of {attempt.nodes}, {attempt.launcher}, "
            f"from {attempt.checkpoint or 'the beginning'}"
        )
        self.report()
        if attempt.node_rank == 0 and not attempt.checkpoint:
            tell_of_others(self.settings)
        write_rank_env(attempt)
        env = self.environment(attempt)
        try:
            self.check(attempt, env)
            if attempt.launcher == "mpi":
                if attempt.remote_shell == "sshd":
                    shutil.rmtree(self.ssh_folder, ignore_errors=True)
                    os.mkdir(self.ssh_folder, 0o700)
                    attempt.sshd = server_command(attempt, self.settings, self.ssh_folder, env)
                if attempt.node_rank == 0:  # the others serve its remote shells
                    self.launch(attempt, mpi_command(attempt, self.settings, self.folder, env), env, "[mpiexec] ")
            elif attempt.launcher == "torchrun":
                self.launch(attempt, torchrun_command(attempt, env), env, "[torchrun] ")
            else:
                for local in range(attempt.ranks_per_node):
                    numbers = {
                        "MUSTER_RANK": str(attempt.node_rank * attempt.ranks_per_node + local),
                        "MUSTER_LOCAL_RANK": str(local),
                        "MUSTER_WORLD_SIZE": str(attempt.nodes * attempt.ranks_per_node),
                    }
                    self.launch(attempt, [*SELF, "rank", "--", *attempt.command], dict(env, **numbers), "")
        except CannotStart as error:
            problem = (error.error, error.program)
            self.fail(attempt, -1, (127, 0), f"could not start: {error}", [str(error)], problem=problem)
            self.stop("finished", 0.0)
        except OSError as error:
            self.fail(attempt, -1, (127, 0), f"could not start: {error}", [str(error)])
            self.stop("finished", 0.0)

    def check(self, attempt: Attempt, env: dict[str, str]) -> None:
        """Raise CannotStart where this node cannot execute the launcher or the command, whichever node starts them."""
        if attempt.launcher == "mpi":
            mpi_program(env)
        elif attempt.launcher == "torchrun":
            torchrun_program(env)
        check_program(attempt.command[0], env, self.settings.workdir)
        check_length(attempt.command, env)

    def environment(self, attempt: Attempt) -> dict[str, str]:
        """The pod's own environment with what the attempt adds; what launchers and remote commands get."""
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **attempt.env}  # what a killed rank printed last must be seen
        sdk = os.path.join(os.path.dirname(ARCHIVE), "sdk") if ARCHIVE else SOURCE_TREE
        env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), sdk) if part)
        env["MUSTER_RANK_SOCKET"] = os.path.join(self.folder, "ranks")
        return env

    # -- processes

    def spawn(self, argv: list[str], env: dict[str, str], on_exit: Callable[[Child], None], **pipes: int) -> Child:
        """Start a process in a session of its own."""
        popen: subprocess.Popen[bytes] = subprocess.Popen(
            argv, env=env, cwd=self.settings.workdir, start_new_session=True, **pipes  # type: ignore[call-overload]
        )  # fmt: skip
        child = self.children[popen.pid] = Child(popen, on_exit)
        return child

    def launch(self, attempt: Attempt, argv: list[str], env: dict[str, str], prefix: str) -> None:
        """Start a launcher, or a rank of launcher none."""
        (out, out_end), (err, err_end) = self.output.pipe(1, prefix), self.output.pipe(2, prefix)
        try:
            child = self.spawn(argv, env, self.launcher_ended, stdin=subprocess.DEVNULL, stdout=out_end, stderr=err_end)
        finally:
            os.close(out_end)
            os.close(err_end)
        attempt.roots[child], attempt.began = [out, err], True

    def reap(self) -> None:
        """Collect every process that has ended: ours, and what became ours when its parent died."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                child.finish(status)
            for rank in self.ranks():
                if rank.pid == pid:
                    self.rank_ended(rank, status, orphan=True)

    def launcher_ended(self, child: Child) -> None:
        """mpiexec, torchrun or the parent of a rank has ended."""
        child.close()
        attempt = self.attempt
        if attempt is None or child not in attempt.roots:
            return
        out, err = attempt.roots.pop(child)
        if child.status != 0 and attempt.exit is None and self.state == "running":
            err.closed.wait(0.5)
            attempt.launcher_failed(child.outcome(), "launcher exited", list(err.tail) or list(out.tail))

    # -- ranks

    def rank_begins(self, hello: dict[str, Any]) -> tuple[Rank, dict[str, Any], tuple[int, int]] | None:
        """A `rank` process asks for its environment and output."""
        attempt = self.attempt
        if attempt is None or self.state != "running" or str(hello.get("attempt")) != str(attempt.number):
            return None
        try:
            number = int(hello["rank"])
        except (KeyError, TypeError, ValueError):
            return None
        prefix = attempt.prefix(number)
        (out, out_end), (err, err_end) = self.output.pipe(1, prefix), self.output.pipe(2, prefix)
        rank = Rank(number, out, err)
        attempt.ranks.append(rank)
        reply: dict[str, Any] = {"env": attempt.rank_env(), "cwd": self.settings.workdir}
        if attempt.launcher == "mpi" and attempt.nodes > 1:
            reply["lingers"] = True
        return rank, reply, (out_end, err_end)

    def rank_ended(self, rank: Rank, status: int, orphan: bool = False) -> None:
        """A rank has ended by itself or was stopped; the first failure of this node is the one to tell."""
        attempt = self.attempt
        if not rank.alive or attempt is None or rank not in attempt.ranks:
            return
        rank.alive = False
        if (status == 0 and not orphan) or attempt.exit is not None or self.state != "running":
            return
        ended_at, tail, outcome, mpi = time.time(), rank.tail(), outcome_of(status), attempt.launcher == "mpi"
        abort, noted = find_abort(tail), self.watch.exit_code(rank.pid)
        if noted is not None and (abort is not None or not (orphan or rank.signalled)):
            # MPI_Abort, or our SIGKILL, only ended what had failed already
            said = tail if abort is None else abort.before or list(rank.out.tail)
            self.rank_failed(attempt, rank, (noted, 0), "rank exited", said, ended_at)
        elif mpi and abort is not None:
            self.fail(attempt, rank.number, (abort.code, 0), "rank called MPI_Abort", abort.said, ended_at)
        elif orphan or rank.signalled or (mpi and outcome[0] in LAUNCHER_GONE):
            attempt.launcher_failed((255, 0), "ranks stopped by their launcher", tail)
        else:
            memory = outcome[1] == signal.SIGKILL and oom_kills() > attempt.oom_kills
            reason = "rank exited: out of memory, killed by the kernel" if memory else "rank exited"
            self.rank_failed(attempt, rank, outcome, reason, tail, ended_at)

    def rank_failed(
        self, attempt: Attempt, rank: Rank, outcome: tuple[int, int], reason: str, tail: list[str], ended_at: float
    ) -> None:
        """A rank failed by itself: tell it; mpiexec stops the other ranks, without it this node's are stopped here."""
        problem = (rank.exec_error, attempt.command[0]) if rank.exec_error else (0, "")
        self.fail(attempt, rank.number, outcome, reason, tail, ended_at, problem)
        if attempt.launcher != "mpi":
            self.stop("finished", self.grace_s)

    def rank_orphaned(self, rank: Rank) -> None:
        """A rank's parent was killed by the launcher: the rank is ours now."""
        if rank.alive and rank.orphaned_at is None:
            rank.orphaned_at = time.monotonic()
            if self.attempt is not None:
                self.attempt.launcher_failed((255, 0), "ranks stopped by their launcher", [])

    def fail(
        self, attempt: Attempt, rank: int, outcome: tuple[int, int], reason: str, tail: list[str], at: float = 0.0,
        problem: tuple[int, str] = (0, ""),
    ) -> None:  # fmt: skip
        """Note this node's first failure and tell it at once; `problem`: errno and the program not executed."""
        attempt.exit = {
            "attempt": attempt.number, "rank": rank, "code": outcome[0], "signal": outcome[1],
            "time": at or time.time(), "tail": tail, "reason": reason,
            "errno": problem[0], "program": problem[1],
        }  # fmt: skip
        who = f"rank {rank}" if rank >= 0 else "the node"
        how = f"was killed by signal {outcome[1]}" if outcome[1] else f"ended with exit code {outcome[0]}"
        self.banner(f"attempt {attempt.number}: {who} {how} ({reason})")
        self.report()

    # -- stopping

    def stop(self, then: str, grace_s: float) -> None:
        """Begin to stop everything of the attempt; afterwards `then`: idle, finished or exit."""
        self.then = then
        deadline = time.monotonic() + grace_s
        if self.state == "stopping":
            self.stop_deadline = min(self.stop_deadline, deadline)
            return
        quiet = then == "finished" and grace_s == 0
        self.symptoms.forget()
        self.state, self.stop_deadline, self.kill_deadline = "stopping", deadline, float("inf")
        for rank in self.ranks():
            rank.signal(signal.SIGTERM)
        if not quiet:
            self.report()

    def tick(self, now: float) -> None:
        """Whatever is due."""
        attempt = self.attempt
        for rank in self.ranks():
            if rank.alive and rank.orphaned_at is not None:
                self.tick_orphan(rank, now - rank.orphaned_at)
        alive = [rank for rank in self.ranks() if rank.alive]
        if self.state == "running" and attempt is not None:
            if now >= self.look_at:
                self.look_at = now + 1.0
                self.watch.tick(now)
                if self.symptoms.look(attempt.ranks, now):
                    self.report()
            ended = attempt.began and not attempt.roots and not alive
            if attempt.exit is None and attempt.launcher_exit and (ended or now > attempt.launcher_exit_due):
                self.fail(attempt, -1, *attempt.launcher_exit)
            if ended:
                self.stop("finished", 0.0)
        if self.looked is not None and self.looked.late(now):
            self.report()
        if self.leave_at is not None and (self.state == "idle" or now >= self.leave_at):
            self.leave()
        if self.state != "stopping":
            return
        roots = list(attempt.roots) if attempt else []
        connections = bool(attempt and attempt.connections)  # sshd may have an exit to tell yet
        if self.kill_deadline == float("inf"):
            if alive and now < self.stop_deadline:
                return
            for rank in alive:
                rank.signal(signal.SIGKILL)
            # mpiexec ends its remote side when asked; torchrun would only log how it was interrupted
            ask = attempt is not None and attempt.launcher == "mpi" and bool(roots)
            for child in roots if ask else []:
                signal_group(child.pid, signal.SIGTERM)
            self.kill_deadline = now + (2.0 if ask or connections else 0.0)
        if (roots or connections) and now < self.kill_deadline:
            return
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.reap()
        if left or self.children:
            if now > self.kill_deadline + 10.0:
                self.kill_deadline = now
                log(f"processes that SIGKILL does not end (a device that hangs?): {left}")
            return
        self.stopped()

    def tick_orphan(self, rank: Rank, age_s: float) -> None:
        """Its launcher wanted it stopped: after a moment for an exit of its own, see to it."""
        try:
            os.kill(rank.pid, 0) if rank.pid else None
        except ProcessLookupError:
            self.rank_ended(rank, 0, orphan=True)  # its status went with its parent: its note and its lines are left
            return
        if not rank.pid:
            rank.alive = False  # had not started; the sweep at the end finds what there is
        elif self.state != "running":
            return  # `stop` has signalled it, and gives it its grace
        elif age_s > ORPHAN_KILL_S:
            rank.signal(signal.SIGKILL)
        elif age_s > ORPHAN_EXIT_S and not rank.signalled:
            rank.signal(signal.SIGTERM)

    def stopped(self) -> None:
        """Nothing of the attempt lives."""
        attempt = self.attempt
        if attempt is not None:
            for rank in attempt.ranks:
                rank.alive = False
            attempt.roots.clear()
            shutil.rmtree(self.ssh_folder, ignore_errors=True)
            remove_leftovers(self.since)
            self.watch.forget()
            if self.then == "finished" and attempt.exit is None:
                attempt.exit = {
                    "attempt": attempt.number, "rank": -1, "code": 0, "signal": 0, "time": time.time(), "tail": [],
                    "reason": "all ranks exited",
                }  # fmt: skip
            if not attempt.over:  # the node of a finished attempt is directed to exit later
                self.banner(f"attempt {attempt.number}: over on this node")
            attempt.over = True
        if self.then == "exit" or (self.then == "idle" and self.leave_at is not None):
            self.over = True
            return
        if self.then == "idle":
            self.hold(max(self.held, int(self.directive["attempt"])))
        else:
            self.state = self.then
            self.report()
        self.directed(self.directive)

    def terminate(self) -> None:
        """SIGTERM: the pod is to go. For half of the grace ranks go on: the controller may ask them for a checkpoint.

        It ends that at once where it has no use for it; where it does not answer the ranks are stopped at once. An
        attempt that has ended here waits as long for a controller that may not have heard of the end.
        """
        self.exit_code = 143
        if self.leave_at is not None:
            self.stop("exit", 0.0)  # once more: in a hurry
            return
        waits = self.state == "finished" or (self.state == "running" and self.link.in_contact)
        self.leave_at = time.monotonic() + (self.grace_s / 2 if waits else 0.0)

    def leave(self) -> None:
        """Stop what runs, then exit."""
        if self.state != "stopping" or self.then != "exit":
            self.stop("exit", self.grace_s / 2)

    def banner(self, text: str) -> None:
        """Mark an attempt's boundary in the log."""
        write_all(1, (f"--- muster: {text} ---\n").encode("utf-8", "replace"))
