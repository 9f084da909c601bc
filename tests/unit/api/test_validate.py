"""Jobs that cannot run, and the field and remedy each complaint names."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.api.training_job import TrainingJob
from muster.api.validate import validate
from muster.kube.objects.struct import from_dict


def job(name: str = "train", **spec: Any) -> TrainingJob:
    body = {"replicas": 1, "image": "i", "command": ["c"], **spec}
    return from_dict({"metadata": {"name": name}, "spec": body}, TrainingJob)


def test_a_good_job_has_no_problem() -> None:
    good = job(
        gpusPerNode=8,
        env=[{"name": "A", "value": "1"}],
        code={"url": "https://example.test/code.tar.gz", "sha256": "0" * 64},
        sharedMemory="64Gi",
        template={"spec": {"containers": [{"name": "worker", "resources": {"limits": {"cpu": "8"}}}]}},
    )
    assert validate(good) == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (job("Train"), "metadata.name"),
        (job("a" * 53), "metadata.name"),
        (job(image=""), "spec.image"),
        (job(command=[]), "spec.command"),
        (job(command=[""]), "spec.command[0]"),
        (job(env=[{"name": "MUSTER_URL", "value": "x"}]), "spec.env[0].name"),
        (job(env=[{"name": "A=B"}]), "spec.env[0].name"),
        (job(env=[{"name": "A"}, {"name": "A"}]), "spec.env"),
        (job(env=[{"name": "A", "value": "1", "valueFrom": {}}]), "spec.env[0]"),
        (job(code={}), "spec.code"),
        (job(code={"configMap": "a", "url": "https://x", "sha256": "0" * 64}), "spec.code"),
        (job(code={"url": "https://x"}), "spec.code.sha256"),
        (job(code={"url": "ftp://x", "sha256": "0" * 64}), "spec.code.url"),
        (job(sharedMemory="lots"), "spec.sharedMemory"),
        (job(launcher="none", mpi={"extraArgs": ["-v"]}), "spec.mpi"),
        (job(noSpare="Shrink"), "spec.minReplicas"),
        (job(minReplicas=1), "spec.minReplicas"),
        (job(noSpare="Shrink", minReplicas=2), "spec.minReplicas"),
        (job(replicas=300, noSpare="Shrink", minReplicas=43), "spec.minReplicas"),
        (job(template={"kind": "Pod"}), "spec.template.kind"),
        (job(template={"spec": {"resourceClaims": [{"name": "gpus"}]}}), "spec.template.spec.resourceClaims"),
        (job(template={"spec": {"schedulerName": "x"}}), "spec.template.spec.schedulerName"),
        (job(template={"spec": {"volumes": [{"name": "muster-shm"}]}}), "spec.template.spec.volumes[0].name"),
        (job(template={"spec": {"containers": [{"image": "x"}]}}), "spec.template.spec.containers[0].name"),
        (
            job(template={"spec": {"containers": [{"name": "worker", "env": []}]}}),
            "spec.template.spec.containers[0].env",
        ),
    ],
)
def test_the_problem_names_its_field(wrong: TrainingJob, field: str) -> None:
    assert field in [problem.field for problem in validate(wrong)]


def test_bounds_hold_for_jobs_made_in_code() -> None:
    good = job()
    wrong = replace(good, spec=replace(good.spec, replicas=0))
    assert [(problem.field, problem.message) for problem in validate(wrong)] == [("spec.replicas", "expected int >= 1")]


def test_the_image_may_come_from_the_template() -> None:
    assert validate(job(image="", template={"spec": {"containers": [{"name": "worker", "image": "i"}]}})) == []
