"""A simulated rank supervisor: it follows the real protocol, but its ranks are only timers.

It has the same states as muster.trainingjobs.supervisor, and sends the same reports in the same order. As
`ControllerLink` does there, it sends a changed state at once on the free connection. As `Supervisor.follow` does,
it stops the ranks of attempts that are older than the directive's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from muster.sim.poller import Link, Poller

SHELL_PORT = 30000


@dataclass(frozen=True, kw_only=True)
class Work:
    """Durations of the ranks' work.

    Attributes:
        stop_s: from SIGTERM to the last rank's end.
        launch_s: from `run` to the first step.
        step_s: between two steps.
        steps: number of steps of the program; None: it runs for ever.
        saved_steps: number of steps between two checkpoints that the program saves by itself; None: it saves none.
        answers: when the controller asks for a checkpoint, the program saves its last step at once.
        restores: before it trains, the ranks of each node report whether they could read the checkpoint.
        damaged: returns whether the ranks of a node (its step, its node rank) find a checkpoint damaged.
        shares: shares of `steps` that the ranks of the nodes do, repeated over the node ranks; empty: all do all steps.
    """

    stop_s: float = 0.5
    launch_s: float = 0.5
    step_s: float = 0.5
    steps: int | None = None
    saved_steps: int | None = None
    answers: bool = False
    restores: bool = False
    damaged: Callable[[int, int], bool] = lambda step, node_rank: False
    shares: tuple[float, ...] = ()

    def steps_of(self, node_rank: int) -> float:
        """Return the number of steps that the ranks of a node do; infinite if the program runs for ever."""
        if self.steps is None:
            return float("inf")
        return max(1, round(self.steps * self.shares[node_rank % len(self.shares)])) if self.shares else self.steps


class Program:
    """The communication between the ranks of a job. In this base class, ranks do not depend on each other."""

    def begun(self, attempt: int, node_rank: int, slot: int, run: dict[str, Any]) -> None:
        """Record that the ranks of a slot start, with the `run` of the directive."""

    def together(self, attempt: int) -> bool:
        """Return whether every node of the attempt runs or has ended well. Otherwise ranks cannot finish a step."""
        return True

    def restored(self, attempt: int, node_rank: int, path: str, step: int) -> None:
        """Record that a node trains from this checkpoint, because the controller said that all nodes have read it."""

    def reported(self, attempt: int) -> None:
        """Record that node rank 0 reported its last step, and that the controller acknowledged it."""

    def ended(self, attempt: int, node_rank: int) -> None:
        """Record that the ranks of a node ended well. With mpi, node rank 0 stands for the launcher."""

    def others_ended(self, attempt: int) -> bool:
        """Return whether the ranks of all nodes except node rank 0 have ended well."""
        return True


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The pod and the job of a supervisor."""

    job: str
    slot: int
    pod: str
    pod_uid: str
    address: str


class SimSupervisor:
    """One simulated supervisor.

    Args:
        identity: the supervisor's pod.
        links: connections to the controller for the long polls.
        report_link: connection to the controller for reports of the program on node rank 0.
        token: the pod's token.
        work: durations of the ranks' work.
        rng: source of random numbers for the jitter of retries.
        on_change: called when its state changes.
        on_exit: called with its exit code when it was directed to exit.
        wall: seconds since the epoch, for the times of ranks' exits.
        program: the communication between the ranks.
    """

    def __init__(
        self,
        identity: Identity,
        links: tuple[Link, Link],
        report_link: Link,
        token: str,
        *,
        work: Work,
        rng: random.Random,
        on_change: Callable[[], None],
        on_exit: Callable[[int], None],
        wall: Callable[[], float],
        program: Program | None = None,
    ) -> None:
        self.identity = identity
        self.state, self.attempt, self.node_rank, self.step = "idle", 0, -1, 0
        self.exit_code = 0
        self.saved = 0
        """The step of the last checkpoint that the controller confirmed."""
        self._report_link, self._token = report_link, token
        self._work, self._wall, self._ranks = work, wall, program or Program()
        self._on_change, self._on_exit = on_change, on_exit
        self._directive: dict[str, Any] = {}
        self._last_begun, self._then = 0, ""
        self._exit: dict[str, Any] | None = None
        self._checkpoint_wanted: asyncio.Future[int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._program: asyncio.Task[None] | None = None
        self._poller = Poller(links, token, body=self._body, on_directive=self._directed, rng=rng)
        self._spawn(self._poller.run())

    def kill_rank(self) -> None:
        """Kill the rank of this node, as by SIGKILL."""
        self._ended(137, 9)

    def fail_rank(self, code: int) -> None:
        """Let the rank of this node exit with a code."""
        self._ended(code, 0)

    def stall(self) -> None:
        """Let the program hang, as a collective operation does if another rank is gone."""
        if self._program is not None:
            self._program.cancel()

    async def checkpoint(self) -> int:
        """Have node rank 0's program report a checkpoint at its next step; returns that step once it is durable."""
        self._checkpoint_wanted = asyncio.get_running_loop().create_future()
        return await self._checkpoint_wanted

    def freeze(self, frozen: bool) -> None:
        """Stop the processes as by SIGSTOP while the machine continues to run; or resume them."""
        self._poller.freeze(frozen)

    def vanish(self) -> None:
        """Stop at once because the machine failed; connections are reset."""
        self._poller.close(reset=True)
        self._report_link.reset()
        self.close()

    def close(self) -> None:
        """Stop because the container has ended."""
        for task in self._tasks:
            task.cancel()
        self._poller.close()
        self._report_link.cut()

    # ---- the link

    def _directed(self, directive: dict[str, Any]) -> None:
        self._directive = directive
        self._follow()

    def _body(self) -> dict[str, Any]:
        body = {
            "state": self.state,
            "attempt": self.attempt,
            "shellPort": SHELL_PORT,
            "address": self.identity.address,
        }
        if self.state != "idle" and self._last_begun == self.attempt:
            body["nodeRank"] = self.node_rank
        return body if self._exit is None else body | {"exit": self._exit}

    def _report(self) -> None:
        self._on_change()
        self._poller.send()

    # ---- the state machine

    def _follow(self) -> None:
        if self._state_is("stopping") and self._then == "exit":
            return
        desired, number = self._directive["desired"], int(self._directive["attempt"])
        if desired == "exit" and number >= self.attempt:
            self.exit_code = int(self._directive.get("exitCode", 0))
            self._stop("exit")
        elif number > self.attempt and self._state_is("running"):
            self._stop("idle")
        elif number > self.attempt and self._state_is("stopping"):
            self._then = "idle"
        elif desired in ("hold", "run") and (number > self.attempt or self._state_is("idle")):
            if desired == "run" and number >= self.attempt and number > self._last_begun:
                self._begin(number, self._directive["run"])
            elif number > self.attempt:
                self.state, self.attempt = "idle", number
                self._report()

    def _begin(self, number: int, run: dict[str, Any]) -> None:
        self.state, self.attempt, self._last_begun, self._exit = "running", number, number, None
        self.node_rank = int(run["nodeRank"])
        self._ranks.begun(number, self.node_rank, self.identity.slot, run)
        checkpoint = run.get("checkpoint") or {}
        if self.node_rank == 0:
            self.step = int(checkpoint.get("step", 0))
            self._program = self._spawn(self._train(number, checkpoint, waits=run["launcher"] == "mpi"))
        elif self._work.steps is not None:
            self._program = self._spawn(self._compute(number, checkpoint))
        self._report()

    def _ended(self, code: int, signal: int) -> None:
        self._exit = {
            "attempt": self.attempt,
            "rank": self.node_rank,
            "code": code,
            "signal": signal,
            "time": self._wall(),
            "tail": [],
            "how": "RankExited",
            "reason": "rank exited",
            "errno": 0,
            "program": "",
        }
        self._report()
        self._stop("finished")

    def _stop(self, then: str) -> None:
        self._then = then
        if self._state_is("stopping"):
            return
        ran, self.state = self.state, "stopping"
        self.stall()
        self._report()
        self._spawn(self._stopped_after(self._work.stop_s if ran == "running" and then != "finished" else 0.0))

    async def _stopped_after(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if self._then == "exit":
            self.state = "exited"
            self._on_change()
            self._on_exit(self.exit_code)
            self.close()
            return
        self.state = self._then
        if self._then == "idle":
            self.attempt = max(self.attempt, int(self._directive["attempt"]))
        self._report()
        self._follow()

    def _state_is(self, state: str) -> bool:
        return self.state == state

    # ---- the program of node rank 0

    async def _restore(self, attempt: int, checkpoint: dict[str, Any]) -> int:
        """Agree with the other nodes on the checkpoint, as the SDK does; returns its step."""
        step = int(checkpoint.get("step", 0))
        if not self._work.restores:
            return step
        while checkpoint:
            path, step = checkpoint["path"], int(checkpoint["step"])
            ok = not self._work.damaged(step, self.node_rank)
            body = {"attempt": attempt, "path": path, "nodeRank": self.node_rank, "ok": ok}
            body |= {} if ok else {"reason": "Checksum", "message": "it is damaged"}
            try:
                status, answer = await self._report_link.post("/v1/restore", self._token, body, 30.0)
            except (OSError, EOFError, ValueError, KeyError, TimeoutError):
                status, answer = 0, {}
            verdict = answer.get("verdict")
            if status != 200:
                self._report_link.cut()
                await asyncio.sleep(self._work.step_s)
            elif verdict == "go":
                self._ranks.restored(attempt, self.node_rank, path, step)
                return step
            elif verdict == "older":
                checkpoint = answer["checkpoint"]
            elif verdict != "wait":
                self._ended(1, 0)
                await asyncio.get_running_loop().create_future()
        return 0

    async def _train(self, attempt: int, checkpoint: dict[str, Any], *, waits: bool) -> None:
        """Run the program of node rank 0 to its last step. A launcher then `waits` for the ranks of all other nodes."""
        await asyncio.sleep(self._work.launch_s)
        self.step = await self._restore(attempt, checkpoint)
        asked = False
        while True:
            if self.step >= self._work.steps_of(0):
                self._ranks.reported(attempt)
                if waits and not self._ranks.others_ended(attempt):
                    await asyncio.sleep(self._work.step_s)
                    continue
                self._ranks.ended(attempt, 0)
                self._ended(0, 0)
                return
            if not self._ranks.together(attempt):
                await asyncio.sleep(self._work.step_s)
                continue
            answers, asked = asked, False
            step = self.step if answers else self.step + 1
            body: dict[str, Any] = {"attempt": attempt, "step": step, "metrics": {"loss": 1.0}}
            wanted, self._checkpoint_wanted = self._checkpoint_wanted, None
            if answers or wanted is not None or (self._work.saved_steps and step % self._work.saved_steps == 0):
                body["checkpoint"] = {"path": f"/checkpoints/{step}", "step": step}
            answer: dict[str, Any] = {}
            try:
                status, answer = await self._report_link.post("/v1/report", self._token, body, 30.0)
            except (OSError, EOFError, ValueError, KeyError, TimeoutError):
                self._report_link.cut()
                status = 0
            if status == 200:
                self.step = step
                self.saved = self.step if "checkpoint" in body else self.saved
                if wanted is not None and not wanted.done():
                    wanted.set_result(self.step)
            else:
                self._report_link.cut()  # this replica may not be the leader, so choose another one
                self._checkpoint_wanted = wanted or self._checkpoint_wanted
            asked = self._work.answers and not answers and bool(answer.get("checkpointNow"))
            if asked:
                continue
            await asyncio.sleep(self._work.step_s)

    async def _compute(self, attempt: int, checkpoint: dict[str, Any]) -> None:
        """Run the program of another node, whose ranks do not report."""
        await asyncio.sleep(self._work.launch_s)
        step = await self._restore(attempt, checkpoint)
        while step < self._work.steps_of(self.node_rank):
            step += self._ranks.together(attempt)
            await asyncio.sleep(self._work.step_s)
        self._ranks.ended(attempt, self.node_rank)
        self._ended(0, 0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
