"""Issue 11.23: a job that no controller takes says so, why, and what to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.api.names import ANNOTATION_SHADOW
from muster.api.training_job import TrainingJob
from muster.cli.jobs.untaken import warning
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.struct import from_dict

CREATED = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


class Cluster:
    """Answers the one question that is asked of it."""

    def __init__(self, lease: Lease | Exception) -> None:
        self.lease = lease

    async def get(self, *_: Any) -> Lease:
        if isinstance(self.lease, Exception):
            raise self.lease
        return self.lease


def lease(renewed_s_ago: float, **annotations: str) -> Lease:
    at = CREATED + timedelta(seconds=42 - renewed_s_ago)
    metadata = ObjectMeta(name="muster-controller", annotations=annotations)
    return Lease(metadata=metadata, spec=LeaseSpec(holder_identity="node-1", renew_time=at))


def job(**status: Any) -> TrainingJob:
    metadata = {"name": "train", "namespace": "ns", "creationTimestamp": CREATED.isoformat()}
    return from_dict({"metadata": metadata, "spec": {"replicas": 1}, "status": status}, TrainingJob)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NotFound(404, "NotFound", ""), "no controller has ever led here"),
        (lease(100.0), "none has renewed its lease for"),
        (lease(1.0, **{ANNOTATION_SHADOW: "true"}), "shadow mode, which plans and writes nothing"),
        (lease(1.0), "node-1 leads and has not written about it"),
        (Forbidden(403, "Forbidden", ""), "ask the operator"),
    ],
)
async def test_why_no_controller_has_taken_a_job(answer: Lease | Exception, words: str) -> None:
    cluster: Any = Cluster(answer)
    text = await warning(cluster, job(), CREATED + timedelta(seconds=42))
    assert text.startswith("no controller has taken this job for 42")
    assert words in text


@pytest.mark.parametrize(
    ("status", "after_s"),
    [({}, 5.0), ({"attempt": 1}, 42.0), ({"observedGeneration": 1}, 42.0), ({"phase": "Suspended"}, 42.0)],
)
async def test_a_job_that_is_new_or_taken_is_not_reported(status: dict[str, Any], after_s: float) -> None:
    cluster: Any = Cluster(NotFound(404, "NotFound", ""))
    assert await warning(cluster, job(**status), CREATED + timedelta(seconds=after_s)) == ""
