"""Reports over TLS to a stub of the controller."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import muster
from muster.sdk import reports
from muster.sdk.saves import own
from tests.support.supervisor_stub import StubController


@pytest.fixture
async def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubController]:
    monkeypatch.setattr(reports, "_reporter", None)
    monkeypatch.setattr(reports, "PROGRESS_INTERVAL_S", 0.1)
    monkeypatch.setattr(own, "_committed", None)
    async with StubController(tmp_path) as controller:
        controller.attempt = 2
        for name, value in controller.node(0).env.items():
            if name.startswith("MUSTER"):
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("MUSTER_ATTEMPT", "2")
        monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "ckpt"))
        monkeypatch.delenv("RANK", raising=False)
        yield controller
        if reports._reporter is not None:
            await asyncio.to_thread(reports._reporter.flush)


async def test_progress_is_coalesced_and_the_newest_arrives(stub: StubController) -> None:
    for step in range(1, 501):
        muster.report(step=step, total_steps=500, metrics={"loss": 1 / step})
    await stub.until(lambda: stub.progress and stub.progress[-1]["step"] == 500, "the newest")
    assert stub.progress[-1] == {"attempt": 2, "step": 500, "totalSteps": 500, "metrics": {"loss": 0.002}}
    assert len(stub.progress) < 20


async def test_metrics_that_are_not_numbers_hinder_neither_progress_nor_a_checkpoint(stub: StubController) -> None:
    """Issue 11: JSON holds neither NaN nor infinity, and the controller refused the whole report for ever."""
    metrics = {"loss": float("nan"), "scale": float("inf"), "rate": 0.5}
    muster.report(step=7, metrics=metrics)
    await stub.until(lambda: stub.progress, "progress")
    assert stub.progress[-1] == {"attempt": 2, "step": 7, "metrics": {"rate": 0.5}}
    await asyncio.to_thread(muster.report, 8, None, "/ckpt/8", metrics, 10.0)
    assert stub.checkpoint == {"path": "/ckpt/8", "step": 8}


async def test_a_checkpoint_that_a_restart_would_not_begin_from_is_said(
    stub: StubController, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 11.2: steps that begin again with each epoch; the controller keeps the largest one of an attempt."""
    for step in (10, 10, 12):
        await asyncio.to_thread(muster.report, step, None, f"/ckpt/{step}")
    assert capsys.readouterr().err == ""
    await asyncio.to_thread(muster.report, 2, None, "/ckpt/2")
    assert (
        "a restart would begin from the checkpoint of step 12, not from this one of step 2" in capsys.readouterr().err
    )


@pytest.mark.parametrize("arguments", [{"step": 2**63}, {"step": -(2**63) - 1}, {"step": 1, "total_steps": 10**30}])
async def test_a_step_that_a_status_cannot_hold_is_refused_at_once(
    stub: StubController, arguments: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        muster.report(**arguments)
    assert not stub.progress


async def test_progress_survives_an_absent_controller_without_waiting_for_it(stub: StubController) -> None:
    await stub.away()
    muster.report(step=1, metrics={"loss": 2.0})
    reporter = reports._reporter
    assert reporter is not None
    await stub.until(lambda: reporter._thread is not None and not reporter._sending, "a failed try")
    muster.report(step=2)
    await stub.serve()
    await stub.until(lambda: stub.progress and stub.progress[-1]["step"] == 2, "progress")
    heard: dict[str, object] = {}
    for progress in stub.progress:  # one, or two where the first try came so late that it was heard
        heard |= progress
    assert heard == {"attempt": 2, "step": 2, "metrics": {"loss": 2.0}}


@pytest.mark.slow
async def test_a_checkpoint_is_confirmed_before_the_call_returns(stub: StubController) -> None:
    stub.checkpoint_now = True
    saved = await asyncio.to_thread(muster.save_checkpoint, 40, lambda path: Path(path).touch())
    assert saved is not None
    assert stub.checkpoint is not None
    assert {key: stub.checkpoint[key] for key in ("path", "step", "shards")} == {
        "path": saved.path, "step": 40, "shards": 1,
    }  # fmt: skip
    assert muster.should_checkpoint()
    stub.checkpoint_now = False
    await asyncio.to_thread(muster.report, 41, None, saved.path)
    assert not muster.should_checkpoint()


async def test_program_learns_that_its_job_is_backfilled_and_when_it_no_longer_is(stub: StubController) -> None:
    assert not muster.backfilled()
    stub.backfilled = True
    await asyncio.to_thread(muster.report, 1, None, "/ckpt/1")
    assert muster.backfilled()
    stub.backfilled = None  # a controller of an earlier version does not send the field
    await asyncio.to_thread(muster.report, 2, None, "/ckpt/2")
    assert not muster.backfilled()


async def test_a_checkpoint_waits_for_a_controller_that_is_away(stub: StubController) -> None:
    await stub.away()
    call = asyncio.create_task(asyncio.to_thread(muster.report, 5, None, "/ckpt/5"))
    done, _ = await asyncio.wait([call], timeout=0.5)
    assert not done
    stub.unavailable = True
    await stub.serve()
    await stub.until(lambda: stub.refused or call.done(), "asked while not leading", 20)
    assert not call.done()
    stub.unavailable = False
    await asyncio.wait_for(call, 20)
    assert stub.checkpoint == {"path": "/ckpt/5", "step": 5}


@pytest.mark.slow
async def test_unconfirmed_checkpoint_fails_at_its_deadline(stub: StubController, tmp_path: Path) -> None:
    await stub.away()
    began = time.monotonic()
    with pytest.raises(muster.ControllerUnavailable, match=r"not confirmed within 0\.5 s: .*refused"):
        await asyncio.to_thread(muster.save_checkpoint, 5, lambda path: Path(path).touch(), 2, 0.5)
    assert time.monotonic() - began >= 0.4
    assert sorted(os.listdir(tmp_path / "ckpt")) == [".muster", "step-00000005-attempt-2"]
    assert muster.last_checkpoint() is None


async def test_stale_attempt_is_notified_and_cleans_up(stub: StubController, tmp_path: Path) -> None:
    stub.attempt = 3
    with pytest.raises(muster.StaleAttempt, match="attempt 2 is over, the job is at attempt 3"):
        await asyncio.to_thread(muster.save_checkpoint, 5, lambda path: Path(path).touch())
    assert [path for path in (tmp_path / "ckpt").rglob("*") if path.name != ".muster"] == []
    assert stub.checkpoint is None


async def test_a_stale_attempt_hears_of_it_at_a_later_progress_report(stub: StubController) -> None:
    stub.attempt = 3
    muster.report(step=1)
    reporter = reports._reporter
    assert reporter is not None
    await stub.until(lambda: reporter._stale, "the answer")
    with pytest.raises(muster.StaleAttempt):
        muster.report(step=2)


async def test_other_ranks_report_nothing(stub: StubController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    muster.report(step=1)
    muster.report(step=1, checkpoint="/ckpt/1")
    monkeypatch.setenv("RANK", "0")
    await asyncio.to_thread(muster.report, 2, None, "/ckpt/2")
    assert [report["step"] for report in stub.progress] == [2]


def test_a_checkpoint_needs_its_step() -> None:
    with pytest.raises(ValueError, match="needs step="):
        muster.report(checkpoint="/ckpt/1")
