"""Each fault that can be injected is found by the tests that are there for it, and laid to the right device."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.gputest.levels import TESTS
from muster.gputest.session import Session
from muster.gputest.wire import Request, Setup
from tests.unit.gputest.runs import AMPLE_S, codes, report

BUDGET = ("--budget-s", str(AMPLE_S))


def only(*names: str) -> list[str]:
    assert set(names) <= set(TESTS)
    return [word for name in names for word in ("--test", name)]


def test_wrong_results_of_a_gpu_are_found() -> None:
    found = report("--backend", "cpu:3", "--inject", "wrong-result", *only("memory", "transfers", "matmul"), *BUDGET)
    assert found.injected == "wrong-result"
    last = found.gpus[-1].uuid
    assert codes(found.failures, "memory") == {("wrong-word", last)}
    assert codes(found.failures, "transfers") == {("wrong-copy", last)}
    assert {("wrong-product", last), ("not-repeatable", last)} <= codes(found.failures, "matmul")
    assert all(failure.remedy for failure in found.failures)


@pytest.mark.slow
def test_wrong_results_between_gpus_are_found() -> None:
    tests = only("peers", "all-reduce")
    found = report("--level", "2", "--backend", "cpu:3", "--inject", "wrong-result", *tests, *BUDGET)
    last = found.gpus[-1].uuid
    assert codes(found.failures, "peers") == {("wrong-copy", last)}
    assert codes(found.failures, "all-reduce") == {("wrong-sum", last)}


def test_without_any_gpu_no_test_passes_for_one() -> None:
    found = report("--backend", "cpu:1", "--inject", "missing-gpu", *BUDGET)
    assert {(each.test, each.code) for each in found.failures} == {("visibility", "gpu-count"), ("memory", "gpu-count")}
    skipped = {test.name: test.message for test in found.tests if test.outcome == "skipped"}
    assert skipped == dict.fromkeys(("transfers", "matmul"), "the driver shows no GPU")
    assert not report("--backend", "cpu:1", "--inject", "missing-gpu", *only("matmul"), *BUDGET).passed


def test_a_wrong_word_is_reported_with_its_address() -> None:
    found = report("--backend", "cpu:1", "--inject", "wrong-result", *only("memory"), *BUDGET)
    (failure,) = found.failures
    assert "0x0000000000000000 written, 0x0000000000000001 read, bits 0x1" in failure.message
    assert "the first at 0x" in failure.message


def test_a_slow_gpu_is_below_the_floor_of_its_model(tmp_path: Path) -> None:
    floors = tmp_path / "floors.yaml"
    floors.write_text(
        "version: 1\n"
        "models:\n"
        "  - names: [CPU reference]\n"
        "    floors:\n"
        "      - {figure: host_to_device_gb_per_s, at_least: 0.5, source: a test}\n"
        "      - {figure: device_to_host_gb_per_s, at_least: 1000000, gpus: 8, source: a test of larger nodes}\n"
    )
    found = report("--backend", "cpu:2", "--inject", "slow", "--floors", str(floors), *only("transfers"), *BUDGET)
    (failure,) = found.failures
    assert (failure.test, failure.code, failure.gpu) == ("transfers", "below-floor", found.gpus[-1].uuid)
    assert "host_to_device_gb_per_s" in failure.message
    assert "a test" in failure.message
    assert [test.outcome for test in found.tests] == ["failed"]


def test_a_missing_gpu_is_named_by_its_address() -> None:
    found = report("--backend", "cpu:3", "--inject", "missing-gpu", *only("visibility"), *BUDGET)
    assert len(found.gpus) == 2
    assert "0000:03:00.0" in " ".join(failure.message for failure in found.failures)
    assert {failure.code for failure in found.failures} == {"gpu-count"}


def test_fewer_gpus_than_expected_fail() -> None:
    found = report("--backend", "cpu:2", "--expect-gpus", "8", *only("visibility"), *BUDGET)
    assert codes(found.failures, "visibility") == {("gpu-count", "")}


@pytest.mark.slow
def test_a_hang_ends_at_its_deadline_and_names_the_test_and_the_gpu() -> None:
    # Not with shares of one budget: the test that hangs takes all of its time, and the last one needs enough.
    session = Session(Setup(backend="cpu:2", fault="hang", level=1, scratch="."), lambda request, event: None)
    deadlines_s = {"memory": 12.0, "matmul": 100.0, "cpu": 100.0}
    session.run(tuple(Request(test=name, work_s=0, deadline_s=each_s) for name, each_s in deadlines_s.items()))
    outcomes = {test.name: test.outcome for test in session.tests}
    assert outcomes == {"memory": "hung", "matmul": "skipped", "cpu": "passed"}
    (failure,) = session.failures
    assert (failure.test, failure.code, failure.gpu) == ("memory", "hung", "CPU-0001")
    assert "bandwidth" in failure.message, "what it was doing"
