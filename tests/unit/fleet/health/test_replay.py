"""Recorded logs through the command line: what was found, what would have been done, and which line decided."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from muster.cli.main import run

LOGS = Path(__file__).parent / "logs"


def replayed(capsys: pytest.CaptureFixture[str], log: Path, *options: str) -> dict[str, list[dict[str, Any]]]:
    assert run(["health", "replay", str(log), "-o", "json", *options]) == ExitCode.DONE
    return {node["node"]: node["steps"] for node in json.loads(capsys.readouterr().out)["nodes"]}


def decided(steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(step["decision"]["action"], step["decision"]["rule"]) for step in steps if step["changed"]]


def test_a_gpu_that_fell_off_the_bus(capsys: pytest.CaptureFixture[str]) -> None:
    [steps] = replayed(capsys, LOGS / "fell-off.dmesg").values()
    assert decided(steps) == [("drain", "pcie/fatal"), ("reboot", "xid/79")]
    assert {step["finding"]["component"] for step in steps} == {"0000:17:00.0", "0000:18:00.0"}
    last = steps[-1]
    assert (last["finding"]["code"], last["finding"]["first_s"]) == ("45", 8841.930001)
    assert [each["by"] for each in last["decision"]["excused"]] == ["xid-45-follows"]


def test_a_program_with_a_bug_is_not_the_nodes_fault(capsys: pytest.CaptureFixture[str]) -> None:
    steps = replayed(capsys, LOGS / "program.kern.log")["node-4"]
    assert len(steps) == 5, "what a program wrote itself is no finding"
    assert {(step["decision"]["action"], step["decision"]["fault"]) for step in steps} == {("observe", "application")}
    assert steps[-1]["decision"]["job"] == "restart-app"


def test_records_of_kmsg_are_replayed_too(capsys: pytest.CaptureFixture[str]) -> None:
    [steps] = replayed(capsys, LOGS / "rack.kmsg").values()
    codes = [(step["finding"]["check"], step["finding"]["code"]) for step in steps]
    assert codes == [
        ("sxid", "nonfatal/12028"),
        ("xid", "149/fatal/NETIR_LINK_EVT/0x00000000"),
        ("xid", "145/nonfatal/RLW_REMAP/0x00000001"),
        ("sxid", "fatal/20034"),
        ("nic", "health-lost"),
        ("filesystem", "read-only"),
    ]
    assert decided(steps) == [
        ("observe", "sxid/nonfatal"),
        ("reset-gpu", "xid/149/fatal"),
        ("reset-gpu", "xid/149/fatal"),  # and the job is restarted
        ("reboot", "sxid/fatal"),
    ]


def test_a_pools_policy_decides_for_its_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        "version: 1\nrevision: mine\npools:\n- name: h100\n  nodeSelector: {pool: h100}\n"
        "  codes:\n    xid:\n      79: {action: replace}\n"
    )
    options = ("--policy", str(policy))
    assert decided(replayed(capsys, LOGS / "fell-off.dmesg", *options)[""])[-1][0] == "reboot"
    steps = replayed(capsys, LOGS / "fell-off.dmesg", *options, "--label", "pool=h100")[""]
    assert decided(steps)[-1] == ("replace", "xid/79")
    assert steps[-1]["decision"]["where"] == "mine.yaml:8"


def test_a_timeline_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    packed = tmp_path / "kern.log.2.gz"
    packed.write_bytes(gzip.compress((LOGS / "program.kern.log").read_bytes()))
    assert run(["health", "replay", str(packed)]) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out.startswith("node-4:\n  2026-11-20 08:15:02Z  xid 31 0000:18:00.0: NVRM: Xid")
    assert "-> observe, restart-app: xid/31 (catalogue.yaml:" in said.out
    assert "7 lines, 5 findings, policy muster-1" in said.err


def test_explaining_says_what_holds_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "explain", "--log", str(LOGS / "fell-off.dmesg")]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "reboot (hardware fault)" in said
    assert "decided by xid/79 (catalogue.yaml:" in said
    assert "nvidia RESTART_BM" in said


def test_a_log_without_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "quiet"
    log.write_bytes(b"[ 1.0] all is well\n")
    assert run(["health", "explain", "--log", str(log)]) == ExitCode.DONE
    assert capsys.readouterr().out == "nothing was found\n"


def test_a_policy_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("version: 1\nrevision: mine\n")
    assert run(["health", "check-policy", str(policy)]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("policy mine: ")
    policy.write_text("version: 1\nrevision: mine\ncodes:\n  xid:\n    79: {action: x}\n    80: {job: y}\n")
    assert run(["health", "check-policy", str(policy)]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert "p.yaml:5: " in said
    assert "p.yaml:6: " in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "no-such-file"],
        ["replay", "."],
        ["replay", "{log}", "--policy", "no-such-file"],
        ["replay", "{log}", "--policy", "{binary}"],
        ["replay", "{log}", "--label", "x"],
        ["replay", "{gz}"],
        ["check-policy", "no-such-file"],
        ["explain"],
    ],
)
def test_bad_input_is_said(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "x.gz").write_bytes(b"no gzip")
    names = {"log": LOGS / "rack.kmsg", "binary": tmp_path / "binary", "gz": tmp_path / "x.gz"}
    assert run(["health", *(argument.format(**names) for argument in arguments)]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: ")
