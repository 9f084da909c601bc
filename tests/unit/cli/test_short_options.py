"""Issue 11.27: -n is the namespace everywhere, -N the nodes of `run`; `exec --rank` finds the rank's pod."""

from __future__ import annotations

import asyncio
from typing import cast

import click
import pytest
from msgspec.structs import replace

from muster.api.fixed_spec import fixed
from muster.api.run_record import RunRecord, SlotRange
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import TrainingJobStatus
from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.describe import slots_text
from muster.cli.jobs.pods import check_rank, slot_of_rank
from muster.cli.jobs.watch import get_job_as_it_runs
from muster.cli.main import cli, run
from muster.kube.client import Client
from muster.kube.objects.struct import from_dict


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name in group.list_commands(click.Context(group)):
        below = group.get_command(click.Context(group), name)
        assert below is not None
        found += commands(below, (*path, name)) if isinstance(below, click.Group) else [((*path, name), below)]
    return found


def test_n_is_the_namespace_in_every_command_that_has_one() -> None:
    owners = {path: option.name for path, each in commands(cli) for option in each.params if "-n" in option.opts}
    assert set(owners.values()) == {"namespace"}
    assert ("run",) in owners
    with_namespace = {path for path, each in commands(cli) for option in each.params if "--namespace" in option.opts}
    assert set(owners) == with_namespace - {("controller",), ("admission",), ("readcache",), ("network", "agent")}


@pytest.mark.parametrize("arguments", [["-n", "4", "x.py"], ["x.py", "-n4"], ["x.py", "-n=16"], ["-n", "4", "-f", "j"]])
def test_old_use_of_n_for_nodes_says_what_to_write(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--dry-run", *arguments]) == ExitCode.BAD_INPUT
    said = " ".join(capsys.readouterr().err.split())
    assert "nodes are --nodes" in said
    assert "or -N" in said
    assert "for a namespace of this name write --namespace" in said


def test_n_of_the_script_is_its_own(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    open("x.py", "w").close()
    arguments = ["run", "--dry-run", "-N", "3", "-n", "team-a", "--image", "i", "x.py", "--", "-n", "4"]
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        printed: list[object] = []
        patch.setattr("muster.cli.jobs.run.print_data", lambda data, form: printed.append(data))
        assert run(arguments) == ExitCode.DONE
    (manifest,) = printed
    assert isinstance(manifest, dict)
    assert manifest["metadata"]["namespace"] == "team-a"
    assert manifest["spec"]["replicas"] == 3
    assert manifest["spec"]["args"] == ["-n", "4"]


def job(**status: object) -> TrainingJob:
    spec = {"replicas": 4, "ranksPerNode": 2, "image": "i", "command": ["c"]}
    found = from_dict({"metadata": {"name": "job"}, "spec": spec}, TrainingJob)
    return replace(found, status=TrainingJobStatus(phase="Running", attempt=2, **status))  # type: ignore[arg-type]


def record(attempt: int, *order: SlotRange) -> RunRecord:
    return RunRecord(attempt=attempt, launcher="mpi", nodes=4, ranks_per_node=2, rank_order=order)


def test_slot_of_a_rank_is_the_recorded_one() -> None:
    order = (SlotRange(first=2, count=2), SlotRange(first=0, count=2))
    assert [slot_of_rank(job(run=record(2, *order)), rank) for rank in range(8)] == [2, 2, 3, 3, 0, 0, 1, 1]
    assert [slot_of_rank(job(run=record(1, *order)), rank) for rank in (0, 7)] == [0, 3], "of an older attempt"
    assert [slot_of_rank(job(), rank) for rank in (0, 7)] == [0, 3]


def test_slot_of_a_rank_of_a_shrunk_job() -> None:
    fewer = job(left_out=(1,))
    assert [slot_of_rank(fewer, rank) for rank in range(6)] == [0, 0, 2, 2, 3, 3]
    for rank in (6, 8):
        with pytest.raises(CliError, match=f"has no rank {rank}") as error:
            slot_of_rank(fewer, rank)
        assert error.value.exit_code == ExitCode.BAD_INPUT


def test_slots_and_ranks_are_those_that_the_job_runs_by_not_those_of_an_ignored_edit() -> None:
    """Issue 11.9."""
    runs = job(left_out=(1,), ready_slots=3)
    edited = replace(
        runs, spec=replace(runs.spec, replicas=40), status=replace(runs.status, fixed_spec=fixed(runs.spec))
    )

    class Answers:
        async def get(self, kind: type[TrainingJob], name: str, namespace: str) -> TrainingJob:
            return edited

    found = asyncio.run(get_job_as_it_runs(cast(Client, Answers()), "default", "job"))
    with pytest.raises(CliError) as error:
        check_rank(found, 8)
    assert error.value.hint == "it has 0 to 7"
    assert slots_text(edited) == "3/3 slots ready, 1 of 4 left out"


def test_rank_and_slot_of_exec_exclude_each_other() -> None:
    assert run(["exec", "job", "--rank", "1", "--slot", "0", "--", "true"]) == ExitCode.BAD_INPUT
