"""One attempt on this node: what the controller directed, and how far it has come."""

from __future__ import annotations

import time
from typing import Any

from ..processes import Child, oom_kills
from ..ranks.door import Rank
from ..ranks.output import Stream


class CannotStart(Exception):
    """The attempt cannot start on this node; the message says what to change.

    `program` could not be executed for the reason `error` (errno(3)); 0 and "" for another reason.
    """

    def __init__(self, message: str, error: int = 0, program: str = "") -> None:
        super().__init__(message)
        self.error, self.program = error, program


class Attempt:
    """A `run` directive for this node, and how far it has come. ValueError or KeyError if it is malformed."""

    def __init__(self, directive: dict[str, Any]) -> None:
        run = directive["run"]
        self.number, self.launcher = int(directive["attempt"]), str(run["launcher"])
        self.command = [str(part) for part in run["command"]]
        self.ranks_per_node, self.node_rank, self.nodes = (int(run[k]) for k in ("ranksPerNode", "nodeRank", "nodes"))
        self.key = bytes.fromhex(run["key"])
        self.master_address, self.master_port = str(run.get("masterAddress", "")), int(run.get("masterPort") or 0)
        self.hosts: list[dict[str, Any]] = list(run.get("hosts") or [])
        self.extra_arguments = [str(part) for part in run.get("mpiArgs") or []]
        self.remote_shell = str(run.get("remoteShell") or "supervisor")
        checkpoint = run.get("checkpoint") or {}
        self.checkpoint = str(checkpoint.get("path", ""))
        self.env = {str(name): str(value) for name, value in (run.get("env") or {}).items()}
        self.env["MUSTER_ATTEMPT"] = str(self.number)
        self.env["MUSTER_CHECKPOINT"] = self.checkpoint
        self.env["MUSTER_CHECKPOINT_STEP"] = str(checkpoint.get("step", "")) if self.checkpoint else ""
        if self.launcher not in ("mpi", "torchrun", "none") or not self.command or len(self.key) < 16:
            raise ValueError("launcher, command or key")
        if self.remote_shell not in ("supervisor", "sshd"):
            raise ValueError(f"remoteShell {self.remote_shell!r}")
        self.ranks: list[Rank] = []
        self.roots: dict[Child, list[Stream]] = {}  # launcher, remote commands or `rank` processes; their output
        self.sshd: list[str] = []  # serves a connection on its stdin, where the image's own is to be used
        self.connections: set[Child] = set()  # those that it serves
        self.began = False  # it has had a root
        self.over = False  # nothing of it lives here any more
        self.oom_kills = oom_kills()
        self.exit: dict[str, Any] | None = None
        # a launcher's failure; reported if no rank of this node turns out to be the reason
        self.launcher_exit: tuple[tuple[int, int], str, list[str]] | None = None
        self.launcher_exit_due = 0.0

    def launcher_failed(self, outcome: tuple[int, int], reason: str, tail: list[str]) -> None:
        """Note how the launcher ended; a rank's own exit, if there is one, is known soon."""
        if self.launcher_exit is None or reason == "launcher exited":  # which says more than a lost connection
            self.launcher_exit, self.launcher_exit_due = (outcome, reason, tail), time.monotonic() + 5.0

    def ranks_are_done(self) -> bool:
        """Returns whether all of this node's ranks have started and ended."""
        return len(self.ranks) >= self.ranks_per_node and not any(rank.alive for rank in self.ranks)

    def rank_env(self) -> dict[str, str]:
        """Returns the environment of this node's ranks, beyond the pod's and the numbers from the launcher."""
        env = {"NODE_RANK": str(self.node_rank), "LOCAL_WORLD_SIZE": str(self.ranks_per_node)}
        if self.launcher != "torchrun":  # which sets its own
            env.update(MASTER_ADDR=self.master_address, MASTER_PORT=str(self.master_port))
        return env

    def prefix(self, rank: int) -> str:
        """Returns the prefix of each line of a rank in the log."""
        return f"[rank {rank}] " if self.launcher == "mpi" or self.ranks_per_node > 1 else ""
