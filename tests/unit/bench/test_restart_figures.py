from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.audit import AuditLog
from bench.report import emit
from bench.restart import figures
from bench.restart.outcome import RANKS_RUNNING, Outcome


def outcome(ranks: int, seconds: float, writes: int, side: str = "muster") -> Outcome:
    stages = {"detected": 1.0, RANKS_RUNNING: 1.0 + seconds}
    return Outcome(side, ranks, "node_lost", stages, Counter({"client patch pods": writes}))


def test_medians_spread_and_goals() -> None:
    made = [outcome(4, 1.0, 9), *(outcome(512, seconds, 11) for seconds in (4.0, 12.0, 5.0))]
    report = figures.report([*made, outcome(512, 30.0, 2000, side="jobset")])
    name = "muster_512_node_lost_detected_to_ranks_running_s"
    assert [report.figures[name + end] for end in ("", "_min", "_max")] == [5.0, 4.0, 12.0]
    assert report.figures["jobset_512_node_lost_writes"] == 2000
    slow, grown = (goal for goal in report.goals if goal.name.startswith("node_lost"))
    assert (slow.got, slow.met) == (12.0, False)
    assert (grown.got, grown.met) == (2, True)


def test_goal_without_a_measurement_is_not_met() -> None:
    assert [goal.met for goal in figures.report([outcome(4, 1.0, 9)]).goals] == [False, False]


def test_last_line_is_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = [outcome(4, 1.0, 9)]
    emit(figures.report(made), str(tmp_path / "out.json"), figures.tables(made))
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["bench"] == "restart"
    assert (tmp_path / "out.json").read_text() == last + "\n"


def test_counts_writes_after_a_position_and_not_the_simulation(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, ignored_agents=["sim-kubelet"])
    file = tmp_path / "audit.log"

    def entry(agent: str, user: str, verb: str, resource: str, subresource: str = "") -> str:
        reference = {"resource": resource, "subresource": subresource}
        return json.dumps({"verb": verb, "user": {"username": user}, "userAgent": agent, "objectRef": reference}) + "\n"

    account = "system:serviceaccount:muster-system:muster-controller"
    file.write_text(entry("muster", account, "create", "pods"))
    since = log.position()
    with file.open("a") as lines:
        lines.write(entry("muster", account, "patch", "trainingjobs", "status"))
        lines.write(entry("sim-kubelet", "muster-admin", "patch", "pods", "status"))
        lines.write(entry("kcm", "system:serviceaccount:kube-system:node-controller", "patch", "nodes"))
        lines.write('{"verb": "half a li')
    assert log.writes(since) == {"muster-controller patch trainingjobs/status": 1}
