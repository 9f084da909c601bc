"""Issue 11.9: edits of an active job's spec that got through change nothing, and a condition names the fields."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.api.fixed_spec import KEPT_BYTES_MAX, effective, fixed
from muster.kube.objects.struct import encode, from_dict, to_dict
from muster.trainingjobs.plan import CreatePod, RecordEvent
from muster.trainingjobs.status import builder
from tests.unit.trainingjobs.world import World, make_job

EDITS: dict[str, Any] = {
    "replicas": 5,
    "image": "other",
    "command": ["other"],
    "launcher": "none",
    "env": [{"name": "A", "value": "b"}],
    "stopGraceSeconds": 1,
    "minReplicas": 1,
    "template": {"spec": {"nodeSelector": {"a": "b"}}},
}


def edit(world: World, **spec: Any) -> None:
    """What `kubectl edit` does where the API server lets it."""
    assert world.job is not None
    body = to_dict(world.job)
    body["spec"] |= spec
    metadata = replace(world.job.metadata, generation=world.job.metadata.generation + 1)
    world.job = replace(from_dict(body, type(world.job)), metadata=metadata)


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_of_a_running_job_changes_nothing_and_is_named(field: str) -> None:
    world = World(make_job(2)).started()
    before = world.directive
    edit(world, **{field: EDITS[field]})
    world.control()
    assert (world.status.phase, world.status.attempt, world.directive) == ("Running", 1, before)
    assert builder.condition_holds(world.status, "SpecIgnored")
    reason, message = builder.condition_reason(world.status, "SpecIgnored")
    assert reason == "FieldsFixed"
    assert f"spec.{field}" in message
    assert [each.reason for each in world.actions(RecordEvent)].count("SpecIgnored") == 1


def test_the_next_attempt_is_made_from_the_spec_that_the_job_began_with() -> None:
    world = World(make_job(2)).started()
    edit(world, image="other", command=["other"], replicas=3)
    world.fail_pod(1, "Evicted")
    world.until("Running", attempt=2)
    assert world.directive is not None
    assert world.directive.run is not None
    assert (world.directive.run.command, len(world.directive.run.hosts)) == (("train",), 2)
    assert effective(world.snapshot().job).job.spec.image == "i"


def test_a_spec_that_is_restored_takes_the_condition_back() -> None:
    world = World(make_job(2)).started()
    edit(world, image="other")
    world.control()
    edit(world, image="i")
    world.control()
    assert not builder.condition_holds(world.status, "SpecIgnored")
    writes = len(world.history)
    world.control()
    assert len(world.history) == writes


@pytest.mark.parametrize("limit", ["priority", "backoffLimit", "infrastructureLimit", "unknownLimit"])
def test_limits_and_priority_may_change(limit: str) -> None:
    world = World(make_job(2)).started()
    edit(world, **{limit: 7})
    world.control()
    assert effective(world.snapshot().job).ignored == ()
    assert builder.condition_reason(world.status, "SpecIgnored") == ("", "")


def test_edits_of_a_suspended_job_count_when_it_resumes() -> None:
    world = World(make_job(2)).started()
    edit(world, suspend=True)
    world.until("Suspended")
    edit(world, command=["other"], replicas=3)
    edit(world, suspend=False)
    world.until("Running", attempt=2)
    assert world.directive is not None
    assert world.directive.run is not None
    assert (world.directive.run.command, len(world.directive.run.hosts)) == (("other",), 3)
    assert builder.condition_reason(world.status, "SpecIgnored") == ("", "")


def test_a_value_that_was_too_large_to_keep_holds_new_pods_until_it_is_restored() -> None:
    large = {"metadata": {"annotations": {f"key-{number}": "x" * 50 for number in range(200)}}}
    world = World(make_job(2, template=large)).started()
    kept = world.status.fixed_spec
    assert kept is not None
    assert list(kept.too_large) == ["template"]
    edit(world, template={"metadata": {"annotations": {"key-0": "y"}}})
    world.fail_pod(1, "Evicted")
    created = len(world.actions(CreatePod))
    for _ in range(5):
        world.control()
        world.step()
    assert (world.status.phase, len(world.actions(CreatePod))) == ("Restarting", created)
    assert "spec.template changed" in builder.condition_reason(world.status, "SpecIgnored")[1]
    edit(world, template=large)
    world.until("Running", attempt=2)
    assert world.status.restarts is not None
    assert world.status.restarts.user == 0


def test_kept_spec_is_bounded_and_is_not_an_edit() -> None:
    nulls = {"spec": {"nodeSelector": None, "volumes": [{"name": "a", "emptyDir": None}]}}
    small = make_job(2, template=nulls, env=[{"name": "A", "value": "b"}])
    huge = make_job(2, command=["x" * 9000], args=["y" * 3000], ncclEnv={"A": "z" * 3000})
    for job in (small, huge):
        kept = from_dict(to_dict(fixed(job.spec)), type(fixed(job.spec)))
        assert len(encode(kept)) < KEPT_BYTES_MAX + 1024
        now = effective(replace(job, status=replace(job.status, fixed_spec=kept)))
        assert (now.ignored, now.lost, now.job.spec) == ((), (), job.spec)
