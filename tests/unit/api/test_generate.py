"""What is generated is what the code says, and is structural."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api import generate
from muster.api.crd import KINDS, definition


@pytest.mark.slow
def test_generated_files_are_what_the_code_says() -> None:
    stale = [
        name for name, text in generate.files().items() if (generate.ROOT / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python -m muster.api.generate"


@pytest.mark.slow
def test_check_fails_where_a_file_is_stale(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    path = tmp_path / "docs/reference/trainingjob.md"
    path.write_text(path.read_text() + "more")
    assert generate.main(["--check"]) == 1
    assert generate.main(["--help-me"]) == 2


def test_every_field_says_what_it_is() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if schema.get("description") else [path]
        for name, inner in schema.get("properties", {}).items():
            found += undescribed(inner, f"{path}.{name}")
        items = schema.get("items", {})
        for name, inner in items.get("properties", {}).items():
            found += undescribed(inner, f"{path}[].{name}")
        return found

    for kind in KINDS:
        schema = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for section in ("spec", "status") if kind.status is not None else ("spec",):
            missing = undescribed(schema["properties"][section], section)
            assert [path for path in missing if ".conditions[]" not in path] == []


def test_columns_of_kubectl_get() -> None:
    columns = definition(KINDS[0])["spec"]["versions"][0]["additionalPrinterColumns"]
    names = [column["name"] for column in columns]
    assert names[:7] == ["NODES", "READY", "PHASE", "ATTEMPT", "STEP", "RESTARTS", "AGE"]


def test_default_values_are_printed_by_kubectl_get() -> None:
    schema = definition(KINDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = schema["properties"]["status"]["properties"]
    assert {name: field["default"] for name, field in status.items() if "default" in field} == {
        "phase": "Pending",
        "ranAttempt": 0,
        "readySlots": 0,
    }


def test_counters_without_a_bound_may_need_64_bits() -> None:
    """Issue 11: an API server refuses the whole status if a step, such as a count of tokens, exceeds its format."""
    crd: Any = definition(next(kind for kind in KINDS if kind.resource.kind == "TrainingJob"))
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for holder in (status["progress"], status["lastCheckpoint"], status["faults"]["items"], status["run"]):
        step = holder["properties"].get("step") or holder["properties"]["checkpoint"]["properties"]["step"]
        assert step["format"] == "int64"
