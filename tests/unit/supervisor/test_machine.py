"""Issue 12.1: the supervisor's state machine takes typed events and returns typed instructions."""

from __future__ import annotations

import signal
from typing import Any, TypeVar

import pytest

from muster.trainingjobs.supervisor.state import events, instructions
from muster.trainingjobs.supervisor.state.events import Event
from muster.trainingjobs.supervisor.state.instructions import Instruction
from muster.trainingjobs.supervisor.state.machine import ORPHAN_EXIT_S, ORPHAN_KILL_S, Machine

KEY = "5f" * 32
T = TypeVar("T")


class Node:
    """A machine whose clock the test moves; keeps what it asked for."""

    def __init__(self) -> None:
        self.machine, self.now, self.done = Machine(), 100.0, list[Instruction]()

    def gets(self, *received: Event) -> list[Instruction]:
        self.done = [todo for event in received for todo in self.machine.handle(event, self.now, self.now + 1e9)]
        return self.done

    def after(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.gets(events.Tick())

    def directed(self, desired: str, attempt: int, **more: Any) -> list[Instruction]:
        return self.gets(events.Directed({"desired": desired, "attempt": attempt, **more}))

    def runs(self, attempt: int = 1, launcher: str = "none", ranks: int = 1, **more: Any) -> list[Instruction]:
        run = {"launcher": launcher, "command": ["train"], "ranksPerNode": ranks, "nodeRank": 0, "nodes": 1, "key": KEY}
        return self.directed("run", attempt, run={**run, **more}, graceS=10)

    def asked(self, kind: type[T]) -> list[T]:
        return [todo for todo in self.done if isinstance(todo, kind)]

    def report(self) -> dict[str, Any]:
        return self.asked(instructions.Report)[-1].body


@pytest.fixture
def node() -> Node:
    made = Node()
    made.gets(events.Started())
    return made


def examined(key: int, status: int, **more: Any) -> events.RankExamined:
    fields: dict[str, Any] = {
        "orphan": False, "ended_at": 5.0, "tail": ["it broke"], "stdout": [], "noted": None, "out_of_memory": False,
    }  # fmt: skip
    return events.RankExamined(key=key, status=status, **{**fields, **more})


def started(node: Node, launcher: str = "none", ranks: int = 1, **more: Any) -> None:
    """Attempt 1 with its ranks: the launcher has key 50, ranks have keys and numbers 0, 1 ... and pids from 200."""
    node.runs(1, launcher, ranks, **more)
    node.gets(events.LauncherStarted(50, 150))
    for number in range(ranks):
        node.gets(events.RankAsks(number, "1", number), events.RankStarted(number, 200 + number))


def test_hold_looks_for_checkpoints_and_reports_what_it_saw(node: Node) -> None:
    node.directed("hold", 1, look=["step-3"])
    assert node.done == [instructions.LookForCheckpoints(("step-3",))]
    node.gets(events.CheckpointsSeen({"looked": {"step-3": True}}))
    assert node.report() == {"state": "idle", "attempt": 1, "looked": {"step-3": True}}


def test_run_reports_first_and_then_starts_the_attempt(node: Node) -> None:
    node.runs(1)
    assert [type(todo) for todo in node.done] == [
        instructions.Banner, instructions.Report, instructions.StartAttempt,
    ]  # fmt: skip
    assert node.report() == {"state": "running", "attempt": 1, "nodeRank": 0}
    assert node.runs(1) == [], "the attempt runs already"


def test_attempt_that_ran_is_not_started_again(node: Node) -> None:
    started(node)
    node.gets(events.RankEnded(0, 0, False, 0), events.LauncherEnded(50, (0, 0)))
    node.after(1)
    node.gets(events.Swept([], False))
    assert (node.machine.state, node.report()["exit"]["reason"]) == ("finished", "all ranks exited")
    assert node.runs(1) == []


@pytest.mark.parametrize("asked", [("0", 0), ("2", 0), ("1", None), ("1", "first")])
def test_rank_of_another_attempt_or_without_a_number_is_refused(node: Node, asked: tuple[str, object]) -> None:
    node.runs(1)
    assert node.gets(events.RankAsks(4, *asked)) == [instructions.RefuseRank(4)]


@pytest.mark.parametrize("why", ["directed", "failed"])
def test_rank_that_starts_while_the_attempt_stops_is_asked_to_stop_at_once(node: Node, why: str) -> None:
    started(node, ranks=2)
    node.gets(events.RankAsks(2, "1", 2))
    if why == "directed":
        node.directed("exit", 1, graceS=600)
    else:
        node.gets(events.RankEnded(0, 256, False, 0), examined(0, 256))
    assert node.asked(instructions.SignalGroup)[-1] == instructions.SignalGroup(201, signal.SIGTERM)
    node.gets(events.RankStarted(2, 202))
    assert node.done == [instructions.SignalGroup(202, signal.SIGTERM)]


def test_failed_start_finishes_the_attempt_with_the_program_and_errno(node: Node) -> None:
    node.runs(1)
    node.gets(events.StartFailed("train: not found", 2, "train"))
    end = node.report()["exit"]
    assert (end["code"], end["errno"], end["program"]) == (127, 2, "train")
    node.after(0)
    assert node.asked(instructions.KillEverything)
    node.gets(events.Swept([], False))
    assert node.machine.state == "finished"


def test_first_failed_rank_is_reported_and_stops_the_others_without_mpi(node: Node) -> None:
    started(node, ranks=2)
    assert node.gets(events.RankEnded(1, 3 << 8, False, 0)) == [
        instructions.ExamineRank(1, 201, 3 << 8, False, node.now + 1e9)
    ]
    node.gets(examined(1, 3 << 8))
    assert node.asked(instructions.SignalGroup) == [instructions.SignalGroup(200, signal.SIGTERM)]
    end = node.report()["exit"]
    assert (end["rank"], end["code"], end["tail"], end["time"]) == (1, 3, ["it broke"], 5.0)
    assert node.gets(events.RankEnded(0, 15, True, 0)) == [], "the second end is not examined"


def test_mpi_rank_that_lost_its_launcher_is_not_a_failure_of_its_own(node: Node) -> None:
    started(node, "mpi")
    node.gets(events.RankEnded(0, 15 << 8, False, 0), examined(0, 15 << 8))
    assert node.asked(instructions.Report) == []
    node.gets(events.LauncherEnded(50, (9, 0)))
    assert node.done == [instructions.ReadLauncherOutput(50, (9, 0))]
    node.gets(events.LauncherOutput((9, 0), ["lost a host"]))
    node.after(0)
    end = node.report()["exit"]
    assert (end["rank"], end["code"], end["reason"], end["tail"]) == (-1, 9, "launcher exited", ["lost a host"])


@pytest.mark.parametrize(("out_of_memory", "reason"), [
    (True, "rank exited: out of memory, killed by the kernel"), (False, "rank exited"),
])  # fmt: skip
def test_kill_counts_as_out_of_memory_only_if_the_kernel_counted_one(
    node: Node, out_of_memory: bool, reason: str
) -> None:
    started(node)
    node.gets(events.RankEnded(0, signal.SIGKILL, False, 0), examined(0, signal.SIGKILL, out_of_memory=out_of_memory))
    end = node.report()["exit"]
    assert (end["code"], end["signal"], end["reason"]) == (137, 9, reason)


def test_noted_exit_code_counts_where_our_own_signal_ended_the_rank(node: Node) -> None:
    started(node)
    node.gets(events.RankEnded(0, signal.SIGKILL, False, 0), examined(0, signal.SIGKILL, noted=3))
    assert node.report()["exit"]["code"] == 3


def test_orphan_is_asked_to_end_then_killed(node: Node) -> None:
    started(node, "mpi")
    node.gets(events.RankOrphaned(0))
    assert node.machine.orphans() == [200]
    node.after(ORPHAN_EXIT_S / 2)
    assert node.asked(instructions.SignalGroup) == []
    node.after(ORPHAN_EXIT_S)
    assert node.asked(instructions.SignalGroup) == [instructions.SignalGroup(200, signal.SIGTERM)]
    node.after(ORPHAN_KILL_S)
    assert node.asked(instructions.SignalGroup) == [instructions.SignalGroup(200, signal.SIGKILL)]
    node.gets(events.OrphanEnded(200, signal.SIGKILL))
    assert node.machine.orphans() == []


def test_newer_attempt_begins_only_after_every_process_of_the_old_one_is_gone(node: Node) -> None:
    started(node)
    node.runs(2)
    assert node.machine.state == "stopping"
    assert node.asked(instructions.SignalGroup) == [instructions.SignalGroup(200, signal.SIGTERM)]
    assert node.after(9) == [], "the grace"
    node.after(1)
    assert node.asked(instructions.SignalGroup) == [instructions.SignalGroup(200, signal.SIGKILL)]
    assert node.gets(events.Swept([200], True)) == [], "not gone yet"
    node.gets(events.Swept([], False))
    assert [type(todo) for todo in node.done] == [
        instructions.CleanUp, instructions.Banner, instructions.LookForCheckpoints,
    ]  # fmt: skip
    node.gets(events.CheckpointsSeen({"looked": {}}))
    assert [todo.spec.number for todo in node.asked(instructions.StartAttempt)] == [2]


def test_exit_directive_ends_the_process_with_its_code(node: Node) -> None:
    started(node)
    node.directed("exit", 1, exitCode=4, graceS=0)
    node.after(0)
    node.gets(events.Swept([], False))
    assert (node.machine.over, node.machine.exit_code) == (True, 4)


@pytest.mark.parametrize(("in_contact", "leaves_after_s"), [(True, 5.0), (False, 0.0)])
def test_sigterm_leaves_half_of_the_grace_to_a_controller_that_answers(
    node: Node, in_contact: bool, leaves_after_s: float
) -> None:
    started(node)
    node.gets(events.Terminated(in_contact))
    if leaves_after_s:
        node.after(leaves_after_s - 0.1)
        assert node.machine.state == "running"
    node.after(0.1)
    assert (node.machine.state, node.machine.exit_code) == ("stopping", 143)


def test_remote_command_is_refused_once_its_attempt_is_over(node: Node) -> None:
    started(node, "mpi")
    asked = events.CommandAsked(1, "supervisor", None)
    assert [type(todo) for todo in node.gets(asked)] == [instructions.StartCommand]
    assert [type(todo) for todo in node.gets(events.CommandAsked(2, "sshd", 1))] == [instructions.RefuseRequest]
    assert node.machine.remote_shell().key == bytes.fromhex(KEY)
    node.directed("exit", 1)
    assert node.gets(asked) == [instructions.RefuseRequest(1, "the attempt is over")]
    assert node.machine.remote_shell().key == b""


def test_lost_connection_to_the_launcher_is_reported_when_no_rank_explains_it(node: Node) -> None:
    started(node, "mpi", ranks=1)
    node.gets(events.CommandStarted(60, 160), events.CommandOver(60, lost=True))
    assert node.done == [instructions.CloseCommand(60)]
    node.after(4.9)
    assert node.machine.attempt is not None
    assert node.machine.attempt.exit is None
    node.after(0.2)
    assert node.report()["exit"]["reason"] == "launcher connection lost"


def test_directive_that_cannot_be_understood_is_logged_and_changes_nothing(node: Node) -> None:
    started(node)
    (said,) = node.gets(events.Directed({"desired": "run"}))
    assert isinstance(said, instructions.Log)
    assert node.machine.state == "running"


def test_stacks_are_collected_once_for_each_stall(node: Node) -> None:
    started(node)
    again = {"desired": "hold", "attempt": 1, "stall": 1}
    assert node.gets(events.Directed(again)) == [instructions.CollectStacks()]
    assert node.gets(events.Directed(again)) == []
    assert node.gets(events.Directed({**again, "stall": 2})) == [instructions.CollectStacks()]


def test_ticket_of_the_running_attempt_is_renewed_and_no_other(node: Node) -> None:
    """Issue 14: a long run gets a new ticket for the node cache before the old one expires."""
    node.runs(2, cache={"ticket": "old"})
    assert node.asked(instructions.RenewTicket) == []
    assert node.runs(2, cache={"ticket": "new"}) == [instructions.RenewTicket({"ticket": "new"})]
    assert node.runs(2) == []
    assert node.runs(1, cache={"ticket": "of the attempt before"}) == []
