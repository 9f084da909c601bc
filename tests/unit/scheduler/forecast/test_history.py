"""The history of ended gangs as data: merging, limits, unreadable entries, and the likeness of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.run_history import BYTES_MAX, RUNS_MAX
from muster.api.training_job import TrainingJob
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import encode, from_dict, to_dict
from muster.scheduler.forecast.ended import ended_job, likeness_of_ended, likeness_of_job
from muster.scheduler.forecast.history import Runs, groups_of, merged, read_groups, rounded
from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import EndedRun
from muster.scheduler.gangs.priority import job_facts
from muster.scheduler.state import ClusterState
from muster.trainingjobs.pods.pod import build_pod
from tests.unit.trainingjobs.world import PODS, T0, make_job, moment

runs = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        EndedRun,
        likeness=st.builds(Likeness, pattern=st.sampled_from("xy"), nodes=st.integers(1, 2)),
        run_s=st.floats(0, 1e6).map(lambda seconds: round(seconds, 1)),
        completed=st.booleans(),
        ended_at=st.integers(1_700_000_000, 1_700_000_003).map(float),
    ),
)


def run(at: float, like: Likeness | None = None, run_s: float = 60.0) -> EndedRun:
    return EndedRun(like or Likeness(namespace="ns", pattern="train"), run_s, True, at)


def many(count: int, text: str = "") -> Runs:
    return {f"uid-{n}": run(T0 + n, Likeness("ns", "", "", f"p{n}{text}", f"i{text}")) for n in range(count)}


@given(runs)
def test_written_runs_are_read_back(known: Runs) -> None:
    kept, groups = groups_of(known)
    assert kept == known
    assert read_groups(to_dict({"groups": groups})["groups"], 1_700_000_100.0) == (known, 0)


@given(runs, runs)
def test_a_run_that_is_added_again_changes_nothing(known: Runs, news: Runs) -> None:
    once = merged(known, news)
    assert merged(once, news) == once
    assert merged(once, known) == once
    assert all(once[uid].ended_at >= each.ended_at for each in (known, news) for uid, each in each.items())


def test_the_newest_runs_stay_and_an_old_one_does_not_return() -> None:
    known = many(RUNS_MAX)
    more = merged(known, {"new": run(T0 + RUNS_MAX)})
    assert len(more) == RUNS_MAX
    assert known.keys() - more.keys() == {"uid-0"}
    assert merged(more, {"uid-0": known["uid-0"]}) == more


def test_an_object_that_would_be_too_large_leaves_out_the_oldest_runs() -> None:
    known = {uid: rounded(each) for uid, each in many(RUNS_MAX, text="x" * 240).items()}
    kept, groups = groups_of(known)
    assert len(encode(groups)) <= BYTES_MAX
    assert RUNS_MAX / 2 < len(kept) < RUNS_MAX
    assert min(each.ended_at for each in kept.values()) > max(known[uid].ended_at for uid in known.keys() - kept.keys())


GOOD = {"uid": "good", "runSeconds": 5.0, "endTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("groups", "unreadable"),
    [
        (None, 0),
        ("text", 1),
        ([7, None], 2),
        ([{"pattern": 7, "runs": [GOOD, GOOD]}], 2),
        ([{"pattern": "p", "runs": "none"}], 0),
        ([{"pattern": "p", "runs": [None, {}, {**GOOD, "uid": "b", "runSeconds": -1}, {**GOOD, "uid": ""}]}], 4),
        ([{"pattern": "p", "runs": [{**GOOD, "uid": "b", "endTime": "2026-13-01T00:00:00Z"}]}], 1),
        ([{"pattern": "p", "runs": [{**GOOD, "uid": "b", "endTime": "2027-01-01T00:00:00Z"}]}], 1),
        ([{"pattern": "p", "runs": [{**GOOD, "uid": "b", "endTime": "2026-01-01T00:00:00"}]}], 1),
    ],
)
def test_entries_that_are_not_readable_are_counted_and_others_are_read(groups: Any, unreadable: int) -> None:
    now = moment(1_767_300_000.0).timestamp()  # 2026-01-01, later on that day
    assert read_groups(groups, now) == ({}, unreadable)
    both = [*(groups if isinstance(groups, list) else []), {"pattern": "fine", "runs": [GOOD]}]
    assert read_groups(both, now)[0].keys() == {"good"}


def test_texts_are_cut_and_odd_times_are_bounded() -> None:
    odd = rounded(EndedRun(Likeness(image="i" * 999), -5.0, True, 1.75))
    assert (len(odd.likeness.image), odd.run_s, odd.ended_at) == (253, 0.0, 1.0)


@pytest.mark.parametrize(
    "spec",
    [
        {"gpusPerNode": 4, "nodeSharing": "Shared"},
        {"gpusPerNode": 8},
        {"gpusPerNode": 0},
        {"template": {"metadata": {"labels": {"muster.dev/team": "vision"}}}},
    ],
)
def test_a_job_without_pods_is_like_its_gang(spec: dict[str, Any]) -> None:
    """Else the records of a new leader would not count for jobs that wait."""
    job = _begun(spec)
    state = ClusterState()
    state.jobs.set(job.uid, job_facts(job))
    for slot in range(2):
        body = build_pod(job, slot, 1, (), PODS)
        body["metadata"] |= {"uid": f"pod-{slot}", "creationTimestamp": moment(T0).isoformat()}
        state.set_pod(from_dict({**body, "status": {"phase": "Pending"}}, Pod), T0)
    (gang,) = state.snapshot(T0).gangs.values()
    without = likeness_of_job(job, None, "muster.dev/team")
    assert without == gang.likeness == likeness_of_ended(gang)


def _begun(spec: dict[str, Any]) -> TrainingJob:
    shared = spec.get("nodeSharing") == "Shared"
    gpus = spec.get("gpusPerNode", 8)
    use = {"gpusPerNode": gpus} if shared else {"sharing": "Exclusive", "gpusPerNode": gpus, "nodeGpus": gpus}
    data = to_dict(make_job(2, **{"gpusPerNode": gpus, **spec}))
    return from_dict({**data, "status": {"attempt": 1, "nodeUse": use}}, TrainingJob)


def test_a_job_of_an_earlier_version_counts_from_its_start_if_it_had_one_attempt() -> None:
    times = {"startTime": moment(T0).isoformat(), "completionTime": moment(T0 + 90).isoformat()}
    data = to_dict(make_job(2))

    def ended(**status: Any) -> EndedRun | None:
        job = from_dict({**data, "status": {"phase": "Failed", **times, **status}}, TrainingJob)
        return ended_job(job, Likeness(), None)

    assert ended(ranAttempt=1) == EndedRun(Likeness(), 90.0, False, T0 + 90)
    assert ended(ranAttempt=2) is None, "the wait between its attempts is not known"
    assert ended(ranAttempt=2, runSeconds=30.0) == EndedRun(Likeness(), 30.0, False, T0 + 90)
