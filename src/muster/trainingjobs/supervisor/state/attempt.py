"""One attempt on this node: the directive, and its progress."""

from __future__ import annotations

from typing import Any, Mapping


class AttemptSpec:
    """The content of a `run` directive for this node; immutable. Raises ValueError or KeyError if it is malformed."""

    def __init__(self, directive: Mapping[str, Any]) -> None:
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
        self.env["MUSTER_CHECKPOINT_MANIFEST"] = str(checkpoint.get("manifest", "")) if self.checkpoint else ""
        self.cache: dict[str, Any] = dict(run.get("cache") or {})
        if self.launcher not in ("mpi", "torchrun", "none") or not self.command or len(self.key) < 16:
            raise ValueError("launcher, command or key")
        if self.remote_shell not in ("supervisor", "sshd"):
            raise ValueError(f"remoteShell {self.remote_shell!r}")

    def rank_env(self) -> dict[str, str]:
        """Returns the environment of this node's ranks, without the pod's variables and the launcher's rank numbers."""
        env = {"NODE_RANK": str(self.node_rank), "LOCAL_WORLD_SIZE": str(self.ranks_per_node)}
        if self.launcher != "torchrun":  # torchrun sets these itself
            env.update(MASTER_ADDR=self.master_address, MASTER_PORT=str(self.master_port))
        return env

    def prefix(self, rank: int) -> str:
        """Returns the prefix of each line of a rank in the log."""
        return f"[rank {rank}] " if self.launcher == "mpi" or self.ranks_per_node > 1 else ""


class Rank:
    """One rank on this node; `key` names its `rank` process."""

    def __init__(self, key: int, number: int) -> None:
        self.key, self.number = key, number
        self.pid = 0  # pid and process group
        self.alive = True
        self.exec_error = 0  # errno of a command that could not be executed
        self.signalled = False  # stopped by us or by the launcher: its end is then not its own failure
        self.orphaned_at: float | None = None  # when the launcher stopped its `rank` process


class LauncherExit:
    """The end of the launcher. It is reported if no rank of this node is known as the cause by `due`."""

    def __init__(self, outcome: tuple[int, int], how: str, tail: list[str], due: float) -> None:
        self.outcome, self.how, self.tail, self.due = outcome, how, tail, due


RANK_EXITED, OUT_OF_MEMORY, ABORTED = "RankExited", "OutOfMemory", "Aborted"
LAUNCHER_EXITED, RANKS_STOPPED, CONNECTION_LOST = "LauncherExited", "RanksStopped", "ConnectionLost"
COULD_NOT_START = "CouldNotStart"
REASONS = {
    RANK_EXITED: "rank exited",
    OUT_OF_MEMORY: "rank exited: out of memory, killed by the kernel",
    ABORTED: "rank called MPI_Abort",
    LAUNCHER_EXITED: "launcher exited",
    RANKS_STOPPED: "ranks stopped by their launcher",
    CONNECTION_LOST: "launcher connection lost",
    COULD_NOT_START: "could not start",
}
"""How this node's part of an attempt can fail, and the same in words for people."""
RANK_EXIT_S = 5.0
"""A rank's own exit, if there is one, is known within this time after the launcher's."""


class Attempt:
    """The progress of an attempt on this node."""

    def __init__(self, spec: AttemptSpec) -> None:
        self.spec, self.number = spec, spec.number
        self.ranks: list[Rank] = []
        self.launchers: dict[int, int] = {}  # launchers, or `rank` processes of launcher none: pid by key
        self.commands: dict[int, int] = {}  # remote commands with an open session: pid by key
        self.connections: set[int] = set()  # keys of the sshd processes that serve connections
        self.began = False  # whether it has had a launcher or a command
        self.over = False  # whether all its processes have ended
        self.exit: dict[str, Any] | None = None
        self.launcher_exit: LauncherExit | None = None

    @property
    def roots(self) -> list[int]:
        """Pids of launchers and remote commands."""
        return [*self.launchers.values(), *self.commands.values()]

    def launcher_failed(self, outcome: tuple[int, int], how: str, tail: list[str], now: float) -> None:
        """Record how the launcher ended. Its own exit has precedence over a lost connection."""
        if self.launcher_exit is None or how == LAUNCHER_EXITED:
            self.launcher_exit = LauncherExit(outcome, how, tail, now + RANK_EXIT_S)

    def ranks_are_done(self) -> bool:
        """Returns whether all of this node's ranks have started and ended."""
        return len(self.ranks) >= self.spec.ranks_per_node and not any(rank.alive for rank in self.ranks)
