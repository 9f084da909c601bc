"""What the scheduler takes from a TrainingJob: its place in the queue, its limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.objects.meta import Condition, ObjectMeta
from muster.scheduler.gangs.priority import job_facts

CREATED = datetime(2027, 1, 15, 8, 0, 7, tzinfo=UTC)


@pytest.mark.parametrize(("lag_s", "place_s"), [(0, 20), (28, 0)], ids=["same clock", "controller's clock lags"])
def test_resumed_job_queues_from_its_resumption_but_never_from_before_its_creation(lag_s: int, place_s: int) -> None:
    """Base seeds 2000097 and 2000153: the clock of the controller was 28 s behind, and a resumed job passed others."""
    resumed = CREATED + timedelta(seconds=20 - lag_s)
    condition = Condition(type="Suspended", status="False", last_transition_time=resumed)
    job = TrainingJob(
        metadata=ObjectMeta(name="job", namespace="default", creation_timestamp=CREATED),
        spec=TrainingJobSpec(replicas=1),
        status=TrainingJobStatus(conditions=(condition,)),
    )
    assert job_facts(job).since == (CREATED + timedelta(seconds=place_s)).timestamp()
