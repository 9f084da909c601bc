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
    assert len(steps) == 5, "what a program wrote itself is not a finding"
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "no-such-file"],
        ["replay", "."],
        ["replay", "{log}", "--policy", "no-such-file"],
        ["replay", "{log}", "--policy", "{binary}"],
        ["replay", "{log}", "--label", "x"],
        ["replay", "{gz}"],
        ["explain"],
    ],
)
def test_bad_input_is_said(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "x.gz").write_bytes(b"no gzip")
    names = {"log": LOGS / "rack.kmsg", "binary": tmp_path / "binary", "gz": tmp_path / "x.gz"}
    assert run(["health", *(argument.format(**names) for argument in arguments)]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (bytes(range(256)) * 40, "is not text"),
        (b'{"MESSAGE": "NVRM: Xid", "_TRANSPORT": "kernel"}\n', "is JSON"),
        (b"time,gpu,xid\n2026-11-20T08:15:02Z,0,79\n1,2,3,4\n", "has no line that begins like one of a kernel log"),
        (b"LPKSHHRH\0\0\0", "is a journal of systemd"),
        (b"\xfd7zXZ\0\0", "is packed with xz"),
        (b"Nov 20 08:15:02 node-4 sshd[12]: NVRM: Xid\n", "has lines of programs and none of the kernel"),
        (b"train.py: all is well\n" * 50, "has no line that begins like one of a kernel log"),
    ],
)
@pytest.mark.parametrize("command", [["replay"], ["explain", "--log"]])
def test_other_files_are_refused_as_kernel_log(
    command: list[str], content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    assert run(["health", *command, str(log)]) == ExitCode.BAD_INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"log {said}" in shown.err
    assert "hint: " in shown.err


@pytest.mark.parametrize(
    "line",
    [
        b"[    1.0] all is well",
        b"6,339,5140900,-;all is well",
        b"Nov 20 08:15:02 node-4 kernel: all is well",
        b"2026-11-20T08:15:02.123456+00:00 node-4 kernel: [ 1.0] all is well",
        b"[Fri Nov 20 08:15:02 2026] all is well",
        b"2026-11-20T08:15:02,123456+00:00 all is well",
        b"kern  :info  : [    1.0] all is well",
    ],
)
def test_a_quiet_log_of_any_form_is_one_also_behind_zeros_and_other_programs(
    line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "packed"
    log.write_bytes(gzip.compress(b"\0" * 70_000 + b"\nNov 20 08:15:02 node-4 sshd[12]: in\n" + line + b"\n"))
    assert run(["health", "replay", str(log)]) == ExitCode.DONE
    assert ", 0 findings, " in capsys.readouterr().err
