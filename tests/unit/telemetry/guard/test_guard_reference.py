"""The reference of guard.yaml: every field has a description, and the example is valid."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from muster.telemetry.guard.config import GuardConfig, parse_config
from muster.telemetry.guard.reference import EXAMPLE, PAGE, descriptions, page, structs


@pytest.mark.parametrize(("path", "struct"), list(structs(GuardConfig)))
def test_every_field_has_a_description_and_no_other_is_described(path: str, struct: type[msgspec.Struct]) -> None:
    assert set(descriptions(struct)) == {field.name for field in msgspec.structs.fields(struct)}, path


def test_example_is_valid_and_names_the_sections() -> None:
    config = parse_config(EXAMPLE)
    assert config.callers.certificates.callers
    assert config.callers.cluster.callers
    assert config.dearest.readers
    assert config.upstream.headers


@pytest.mark.slow
def test_page_is_what_the_code_says() -> None:
    assert Path(PAGE).read_text(encoding="utf-8") == page()
