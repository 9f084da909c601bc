"""Traces are read as their owners describe them; what cannot be read is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.sim.replay.job import Job, NodeShape, Shape, job_of_gpus, uniform_nodes, within
from muster.sim.replay.openb import read_nodes
from muster.sim.replay.table import BadTrace
from muster.sim.replay.traces import read_trace

DATA = Path(__file__).parent / "data"


def test_openb_tasks_start_with_the_first_and_carry_what_they_ask_for() -> None:
    workload = read_trace(DATA / "openb_pods.csv", 8)
    assert workload.left_out == {"never scheduled": 1}
    assert [(job.name, job.submit_s, job.run_s, job.priority) for job in workload.jobs] == [
        ("t-3", 0.0, 550.0, 1000),
        ("t-0", 100.0, 600.0, 1000),
        ("t-1", 110.0, 90.0, 0),
        ("t-2", 120.0, 300.0, 1000),
    ]
    shapes = {job.name: job.shape for job in workload.jobs}
    assert shapes["t-1"] == Shape(1, 8000, 16384, ("T4",)), "a share of a GPU takes a whole one"
    assert shapes["t-2"] == Shape(8, 64000, 131072, ("G2", "V100M32"))
    assert shapes["t-3"].gpus == 0


def test_openb_nodes() -> None:
    nodes = read_nodes(DATA / "openb_nodes.csv")
    assert nodes[2] == NodeShape("b-0", 8, 96000, 393216, "G2")
    assert [node.gpus for node in nodes] == [2, 2, 8, 0]


def test_acme_times_have_offsets_and_jobs_keep_their_nodes() -> None:
    seren = read_trace(DATA / "acme_seren.csv", 8)
    assert seren.left_out == {"no GPUs": 1}
    assert [(job.name, job.submit_s, job.run_s, job.members, job.shape.gpus, job.gang) for job in seren.jobs] == [
        ("103", 0.0, 30.0, 1, 1, False),
        ("101", 10.0, 117.0, 1, 8, True),
        ("102", 20.0, 3600.0, 4, 8, True),
    ]
    kalos = read_trace(DATA / "acme_kalos.csv", 8)
    assert kalos.left_out == {"never started or still running": 1}
    assert [(job.members, job.shape.gpus, job.run_s) for job in kalos.jobs] == [(8, 8, 8.0), (2, 2, 60.0)]


def test_philly_jobs_run_as_long_as_all_their_attempts_on_the_gpus_of_the_largest() -> None:
    workload = read_trace(DATA / "philly.json", 8)
    assert workload.left_out == {"never started or still running": 2}
    assert [(job.name, job.submit_s, job.run_s, job.members, job.shape.gpus) for job in workload.jobs] == [
        ("application_2", 0.0, 30.0, 1, 1),
        ("application_1", 30.0, 180.0, 2, 8),
    ]


@pytest.mark.parametrize(
    ("gpus", "least_nodes", "members", "each", "gang"),
    [(1, 1, 1, 1, False), (8, 1, 1, 8, True), (9, 1, 2, 8, True), (8, 4, 4, 2, True), (64, 2, 8, 8, True)],
)
def test_a_job_is_cut_into_members(gpus: int, least_nodes: int, members: int, each: int, gang: bool) -> None:
    job = job_of_gpus("j", 0.0, 1.0, gpus, 8, least_nodes)
    assert (job.members, job.shape.gpus, job.gang) == (members, each, gang)
    assert job.gpus >= gpus


def test_skipped_jobs_are_counted_by_reason() -> None:
    workload = read_trace(DATA / "acme_seren.csv", 8)
    kept = within(workload, uniform_nodes(3, 8), least_gpus=2, days=0.0, most=0)
    assert [job.name for job in kept.jobs] == ["101"]
    assert kept.left_out == {"larger than the cluster": 1, "no GPUs": 1, "smaller than 2 GPUs": 1}
    early = within(workload, uniform_nodes(4, 8), least_gpus=0, days=15 / 86400, most=1)
    assert [job.name for job in early.jobs] == ["103"]
    assert early.left_out["beyond the first 1"] == 1
    assert early.left_out["submitted after 0.000173611 days"] == 1


def test_a_job_for_a_model_that_no_node_has_does_not_fit() -> None:
    job = Job("j", 0.0, 1.0, 1, Shape(1, models=("H100",)), gang=False)
    workload = read_trace(DATA / "openb_pods.csv", 8)
    nodes = read_nodes(DATA / "openb_nodes.csv")
    jobs = type(workload)("x", [job, *workload.jobs])
    assert within(jobs, nodes, least_gpus=0, days=0.0, most=0).left_out == {"no node has their GPU model": 1}


OPENB, ACME = (DATA / "openb_pods.csv").read_text(), (DATA / "acme_seren.csv").read_text()
PHILLY = (DATA / "philly.json").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: is not a trace we know"),
        ("a,b\n1,2\n", ":1: is not a trace we know"),
        (OPENB.replace("num_gpu", "gpus"), ":1: no column num_gpu; an OpenB task list has name, cpu_milli"),
        (OPENB.replace("64000,131072,8,", "64000,131072,-8,"), ":4: num_gpu is '-8', not a number of 0 or more"),
        (OPENB.replace("64000,131072,8,", "64000,131072,1.5,"), ":4: num_gpu is '1.5', not a whole number"),
        (OPENB.replace("64000,131072,8,", "64000,inf,8,"), ":4: memory_mib is 'inf', not a number of 0 or more"),
        (OPENB.replace("1010,1110,1020", "1010,1015,1020"), ":3: deletion_time is '1015', not after scheduled_time"),
        (OPENB.replace("1010,1110,1020", "1010,1110"), ":3: 10 cells where the header has 11"),
        (OPENB.replace("t-1,", '"t-1,'), ": unexpected end of data"),
        (ACME.replace("submit_time", "submitted"), ":1: no column submit_time; an Acme trace has job_id"),
        (ACME.replace("2023-03-01 01:19:00+08:00", "later"), ":3: end_time is 'later', not a time such as"),
        (ACME.replace("2023-03-01 01:19:00+08:00", "2023-02-01 01:19:00+08:00"), ":3: end_time is '2023-02-01"),
        (ACME.replace("102,u1,4,", "102,u1,64,"), ":3: node_num is '64', not at most gpu_num, 32"),
        (PHILLY.replace('"jobid": "application_2"', '"job": 2'), ":13: is not a job of a Philly log: Object missing"),
        (PHILLY.replace("2017-10-07 01:12:39", "12:39"), ":13: end_time is '12:39', not a time such as 2017"),
        (PHILLY.replace("2017-10-07 01:12:39", "2016-10-07 01:12:39"), ":13: an attempt of job application_2 ends"),
        (PHILLY.replace("    },\n    {\n", "    }\n    {\n"), ":13: is not JSON: a comma or ] is missing"),
        (PHILLY.replace('"Killed",', '"Killed"'), ":14: is not JSON: Expecting ',' delimiter"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(BadTrace) as refused:
        read_trace(path, 8)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model\n", " has no nodes"),
        (
            "sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,x\na,1,1,1,x\n",
            ":3: sn is 'a', not a name that no other node has",
        ),
        ("sn,cpu_milli,memory_mib,gpu,model\na,0,1,1,x\n", ":2: cpu_milli is '0', not more than 0"),
        ("sn,cpu_milli,gpu,model\na,0,1,x\n", ":1: no column memory_mib"),
    ],
)
def test_a_bad_node_list_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes"
    path.write_text(text)
    with pytest.raises(BadTrace) as refused:
        read_nodes(path)
    assert said in str(refused.value)


def test_a_file_that_is_none_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be read: No such file"):
        read_trace(tmp_path / "none", 8)
    with pytest.raises(BadTrace, match="cannot be read: Is a directory"):
        read_trace(tmp_path, 8)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadTrace, match="is not text"):
        read_trace(tmp_path / "binary", 8)


def test_an_openb_list_without_times_is_named_a_packing_problem(tmp_path: Path) -> None:
    """Issue 11.32: variants of the published list have these columns only."""
    path = tmp_path / "pods.csv"
    for more in ("", ",gpu_spec,qos"):
        path.write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli{more}\nopenb-pod-0000,12000,16384,1,1000\n")
        with pytest.raises(BadTrace, match=r"is a packing problem.* use a variant of the list that has these columns"):
            read_trace(path, 8)
