"""A TrainingJob that asks for nodes tested lately: what its pods say, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.trust import tested_within_h as hours_of
from muster.api.validate import validate
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.trainingjobs.pods.pod import PodSettings, build_pod
from tests.unit.trainingjobs.world import make_job

SETTINGS = PodSettings(url="https://x", ca_pem="", muster_image="muster")


@pytest.mark.parametrize("hours", [None, 1, 24, 8760])
def test_its_pods_ask_the_scheduler_for_it(hours: int | None) -> None:
    job = make_job(2, **({"testedWithinHours": hours} if hours else {}))
    assert validate(job) == []
    assert hours_of(from_dict(build_pod(job, 0, 1, (), SETTINGS), Pod).metadata.annotations) == (hours or 0)


@pytest.mark.parametrize("hours", [0, -1, 8761])
def test_invalid_hours_are_refused(hours: int) -> None:
    job = make_job(2)
    (problem,) = validate(replace(job, spec=replace(job.spec, tested_within_hours=hours)))
    assert problem.field == "spec.testedWithinHours"
