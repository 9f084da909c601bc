"""What the command says and how it ends, on devices that are the CPU's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.gputest.cli import USAGE, main, rendezvous
from muster.gputest.figures import FIGURES
from muster.gputest.probes.allreduce import held_port
from muster.gputest.report import SCHEMA, Report
from tests.unit.gputest.runs import AMPLE_S, command, report

SCHEMA_FILE = Path(__file__).parent / "report.schema.json"


def test_a_healthy_node_passes_level_1() -> None:
    found = report("--backend", "cpu:2", "--node", "n1", "--budget-s", str(AMPLE_S))
    assert found.failures == ()
    assert (found.schema, found.node, found.level, found.injected) == (SCHEMA, "n1", 1, "")
    assert [test.outcome for test in found.tests] == ["passed"] * len(found.tests)
    assert sum(test.deadline_s for test in found.tests) == pytest.approx(AMPLE_S)
    assert [gpu.uuid for gpu in found.gpus] == ["CPU-0000", "CPU-0001"]
    for gpu in found.gpus:
        assert {"host_to_device_gb_per_s", "memory_bandwidth_gb_per_s", "matmul_fp64_tflop_per_s"} <= gpu.figures.keys()
    measured = {name for gpu in found.gpus for name in gpu.figures} | found.node_figures.keys()
    assert measured <= FIGURES.keys()


def test_the_report_keeps_its_schema() -> None:
    """Readers depend on it: a field may be added (write the file again), none may go or change under the same name."""
    assert json.loads(SCHEMA_FILE.read_text()) == json.loads(msgspec.json.encode(msgspec.json.schema(Report)))


def test_people_read_what_failed_and_what_to_do(tmp_path: Path) -> None:
    ran = command("--backend", "cpu:2", "--test", "transfers", "--inject", "wrong-result", "--budget-s", str(AMPLE_S))
    assert ran.returncode == 1
    assert "A DRILL" in ran.stdout
    assert "FAILED transfers: wrong-copy on CPU-0001" in ran.stdout
    assert "Reset the GPU" in ran.stdout
    assert "\033[" not in ran.stdout, "colour is for terminals"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--level", "4"], "--level"),
        (["--backend", "cpu:none"], "cpu:COUNT"),
        (["--test", "peers"], "level 1 has no test peers"),
        (["--budget-s", "-1"], "is not a time to test in"),
        (["--scratch", "/nowhere"], "is not a folder"),
        (["--floors", "/nowhere"], "/nowhere"),
    ],
)
def test_a_command_that_makes_no_sense_tests_nothing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as ended:  # argparse's way
        code = ended.code
    written = capsys.readouterr()
    assert (code, written.out) == (USAGE, "")
    assert said in written.err


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is not None, reason="this machine may have GPUs to test")
def test_without_a_driver_there_is_nothing_to_trust() -> None:
    ran = command("-o", "json")
    assert ran.returncode == 3
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["passed"] is False
    assert found["failures"][0]["code"] == "not-installed"
    assert {test["name"]: test["outcome"] for test in found["tests"]}["matmul"] == "skipped"
    assert "nvidia-ml-py" in ran.stderr


def test_the_program_stands_alone_and_starts_without_its_libraries() -> None:
    code = "import muster.gputest.cli, muster.gputest.worker, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {name.split(".")[1] for name in loaded if name.startswith("muster.")}
    assert ours <= {"gputest", "sdk"}  # the package `muster` itself offers the SDK
    assert not {"numpy", "torch", "pynvml", "yaml", "rich", "click", "aiohttp"} & set(loaded)


@pytest.mark.slow
def test_two_nodes_sum_together() -> None:
    arguments = ("--backend", "cpu:2", "--level", "2", "--test", "all-reduce-nodes", "--budget-s", "100")
    with held_port() as port, ThreadPoolExecutor(2) as pool:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NNODES": "2"}
        nodes = [pool.submit(report, *arguments, NODE_RANK=str(rank), **meeting) for rank in range(2)]
    for node in nodes:
        assert node.result().failures == ()
        assert "cross_node_all_reduce_bus_gb_per_s" in node.result().node_figures


def test_half_a_rendezvous_is_refused() -> None:
    with pytest.raises(ValueError, match="MASTER_PORT, NODE_RANK"):
        rendezvous({"MASTER_ADDR": "127.0.0.1", "NNODES": "2"})
    whole = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "1", "NNODES": "2"}
    for name, value in (("NNODES", "1"), ("NODE_RANK", "-1"), ("MASTER_PORT", "http")):
        with pytest.raises(ValueError, match="the environment"):
            rendezvous({**whole, name: value})
    assert rendezvous({"HOME": "/"}) is None
