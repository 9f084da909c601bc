"""Issue 11.24: `muster explain` says first what keeps the controller from making a job's pods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from msgspec.structs import replace

from muster.api.fixed_spec import fixed
from muster.api.names import LABEL_TEAM
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import Backoff, TrainingJobStatus
from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.explain import _find, _supposed
from muster.kube.client import Client
from muster.kube.objects.meta import Condition, ObjectMeta
from muster.scheduler.explain.why_waiting import Explanation, explain
from muster.scheduler.gangs.gang import Gang
from tests.unit.scheduler.world import START, World

PAUSE_ENDS = datetime.fromtimestamp(START + 60, UTC)


def job(*conditions: tuple[str, str], suspend: bool = False, **status: Any) -> TrainingJob:
    """`conditions`: (type, reason); each is False and has a message of its own."""
    said = tuple(Condition(type=kind, status="False", reason=why, message=f"so {why}") for kind, why in conditions)
    return TrainingJob(
        metadata=ObjectMeta(name="train", namespace="default"),
        spec=TrainingJobSpec(replicas=2, command=("python3", "train.py"), image="x", suspend=suspend),
        status=TrainingJobStatus(conditions=said, **status),
    )


def found(job: TrainingJob, pods: int = 0) -> Gang | Explanation | None:
    """What `explain train` finds on four free nodes, where so many of the job's two pods exist."""

    class Answers:
        async def get(self, kind: type[TrainingJob], name: str, namespace: str) -> TrainingJob:
            return job

    world = World()
    world.add_nodes("a", "b", "c", "d")
    for slot in range(pods):
        world.add_member("train", slot, 2)
    return asyncio.run(_find(cast(Client, Answers()), world.state, "default", "train", START))


@pytest.mark.parametrize("reason", ["InvalidSpec", "CheckpointAwaited", "GpusPerNodeMissing", "NoNodes"])
def test_a_job_without_an_attempt_says_why_it_gets_none(reason: str) -> None:
    explanation = found(job(("Admitted", reason)))
    assert isinstance(explanation, Explanation)
    assert (explanation.waits, explanation.why) == (True, reason)
    assert explanation.lines()[0] == f"default/train: so {reason}"


def test_a_resumed_job_says_why_it_gets_no_attempt() -> None:
    explanation = found(job(("Admitted", "NoNodes"), phase="Suspended", attempt=2))
    assert isinstance(explanation, Explanation)
    assert explanation.why == "NoNodes"


@pytest.mark.parametrize("pods", [0, 1])
def test_a_job_whose_pods_the_cluster_refuses_says_so(pods: int) -> None:
    explanation = found(job(("Admitted", "PodsRefused"), attempt=1), pods)
    assert isinstance(explanation, Explanation)
    assert explanation.lines()[0] == "default/train: so PodsRefused"


def test_a_refusal_that_is_over_is_not_repeated() -> None:
    assert isinstance(found(job(("Admitted", "PodsRefused"), attempt=1), pods=2), Gang)
    assert isinstance(found(job(("Admitted", "InvalidSpec"), attempt=1), pods=2), Gang)


def test_a_job_whose_fixed_spec_is_lost_says_that_no_pod_is_made() -> None:
    began = job(attempt=1)
    spec = replace(began.spec, args=("x" * 6000,))
    edited = replace(began, spec=replace(spec, args=("y",)), status=replace(began.status, fixed_spec=fixed(spec)))
    explanation = found(edited)
    assert isinstance(explanation, Explanation)
    assert explanation.why == "SpecChanged"
    assert "no pod is made until the old value is restored" in explanation.summary


def test_a_job_in_its_backoff_says_when_it_begins() -> None:
    pause = Backoff(failures=3, until=PAUSE_ENDS)
    explanation = found(job(phase="Restarting", attempt=4, backoff=pause), pods=2)
    assert isinstance(explanation, Explanation)
    assert explanation.why == "Backoff"
    assert "the program failed 3 times in a row" in explanation.summary


def test_a_job_whose_pods_end_for_another_says_so() -> None:
    leaving = job(("Running", "Preempted"), phase="Stopping", attempt=1, message="for default/big; its pods end")
    explanation = found(leaving, pods=2)
    assert isinstance(explanation, Explanation)
    assert (explanation.why, explanation.summary) == ("Preempted", "for default/big; its pods end")


@pytest.mark.parametrize(
    ("phase", "suspend", "words", "hint"),
    [
        ("Succeeded", False, "it is Succeeded", ""),
        ("Failed", False, "it is Failed", ""),
        ("Suspended", True, "it is Suspended", "muster resume train lets it continue"),
        ("Running", True, "it is stopping", "muster resume train lets it continue"),
    ],
)
def test_a_job_that_wants_no_nodes_says_so(phase: str, suspend: bool, words: str, hint: str) -> None:
    with pytest.raises(CliError, match=f"'train' wants no nodes: {words}") as raised:
        found(job(phase=phase, suspend=suspend, attempt=1))
    assert (raised.value.hint, raised.value.exit_code) == (hint, ExitCode.CONFLICT)


def test_room_decides_for_a_job_that_nothing_holds_back() -> None:
    assert found(job()) is None
    assert found(job(("Admitted", "NotEnoughNodes"), attempt=1)) is None
    assert isinstance(found(job(("Admitted", "NotEnoughNodes"), attempt=1), pods=2), Gang)


def test_pods_that_do_not_exist_are_supposed_to_be_of_the_spec_that_the_job_runs_by() -> None:
    """Issue 11.25: edits that the controller ignores (SpecIgnored) changed the answer."""
    began = job(phase="Restarting", attempt=2)
    edited = replace(
        began,
        spec=replace(began.spec, replicas=40, gpus_per_node=8),
        status=replace(began.status, fixed_spec=fixed(began.spec)),
    )
    world = World()
    world.add_nodes("a", "b", "c", "d")
    gang = _supposed(world.state, edited, START, LABEL_TEAM, [])
    assert isinstance(gang, Gang)
    assert gang.size == 2
    assert explain(world.state.snapshot(), gang, now=START).summary == "about to be placed: there is room for all of it"
