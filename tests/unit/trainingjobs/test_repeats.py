"""Which jobs count as those whose faults repeat."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import Fault, Phase, TrainingJobStatus
from muster.trainingjobs.status.repeats import faults_repeat

NOW = 1_800_000_000.0


def job(phase: Phase, *ages_s: float) -> TrainingJob:
    faults = tuple(
        Fault(attempt=number, slot=0, time=datetime.fromtimestamp(NOW - age_s, UTC))
        for number, age_s in enumerate(ages_s)
    )
    return TrainingJob(
        spec=TrainingJobSpec(replicas=1, image="i"), status=TrainingJobStatus(phase=phase, faults=faults)
    )


@pytest.mark.parametrize(
    ("found", "repeat"),
    [
        (job("Running", 600, 300, 10), True),
        (job("Restarting", 9000, 3000, 300, 10), True),
        (job("Running", 300, 10), False),
        (job("Running", 3700, 300, 10), False),
        (job("Failed", 600, 300, 10), False),
        (job("Pending"), False),
    ],
)
def test_three_faults_within_an_hour_of_an_unfinished_job_repeat(found: TrainingJob, repeat: bool) -> None:
    assert faults_repeat(found, NOW) is repeat
