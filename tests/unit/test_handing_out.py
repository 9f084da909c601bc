"""How tests are handed out: names of files that are there, and company that stays together."""

from __future__ import annotations

from tests.support.handingout import LONG, TESTS, TOGETHER, handed_out_with


def test_every_file_that_is_named_is_there() -> None:
    files = {*TOGETHER, *LONG} - set(TOGETHER.values())
    assert [name for name in sorted(files) if not (TESTS.parent / name).is_file()] == []


def test_files_that_share_a_cluster_are_handed_out_as_one() -> None:
    installed, shadow = (f"tests/scenarios/deploy/test_{name}.py" for name in ("installed", "shadow"))
    assert handed_out_with(f"{installed}::test_a[b::c]") == handed_out_with(f"{shadow}::test_d")
    assert handed_out_with("tests/scenarios/deploy/test_pools.py::test_a") != handed_out_with(f"{shadow}::test_d")
