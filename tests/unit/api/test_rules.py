"""Issue 11.9: only some fields of an active job may change. cases_rules.py compares both API servers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.api.crd import KINDS, object_schema
from muster.api.rules import BY_CEL, TRAINING_JOB
from muster.api.training_job import MUTABLE_FIELDS, TrainingJobSpec
from tests.scenarios.apiserver.cases_rules import OTHERS

FIELDS = [each.encode_name for each in msgspec.structs.fields(TrainingJobSpec)]
RUNNING = {"attempt": 1}


def refused(old_status: dict[str, Any], **changes: Any) -> list[str]:
    meta = {"name": "train"}
    spec = {"replicas": 2, "suspend": False}
    old = {"metadata": meta, "spec": spec, "status": old_status}
    new = {"metadata": meta, "spec": spec | changes, "status": old_status}
    return [rule.field for rule in TRAINING_JOB if not rule.holds(new, old)]


def test_every_mutable_field_exists() -> None:
    assert set(FIELDS) >= MUTABLE_FIELDS


def test_the_two_forms_of_each_rule_are_found_by_the_text_in_the_crd() -> None:
    for kind in KINDS:
        schema = object_schema(kind)
        said = [*schema.get("x-kubernetes-validations", ())]
        said += schema["properties"]["spec"].get("x-kubernetes-validations", ())
        assert all(each["rule"] in BY_CEL for each in said)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_an_active_job_is_fixed_unless_it_is_named_mutable(field: str) -> None:
    expected = [] if field in MUTABLE_FIELDS else [f".spec.{field}"]
    assert refused(RUNNING, **{field: OTHERS.get(field, "other")}) == expected


def test_everything_may_change_before_the_first_attempt_and_with_suspend() -> None:
    assert refused({}, image="other") == []
    assert refused({"phase": "Pending"}, image="other") == []
    assert refused(RUNNING, image="other", suspend=True) == []
