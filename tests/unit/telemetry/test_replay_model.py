"""Predictions of replays: the model, the fit, and figures that others reported."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.replay.defaults import DEFAULT
from muster.telemetry.replay.fit import Run, fit, non_negative
from muster.telemetry.replay.model import Coefficients, ReplaySize, predict, size_of
from muster.telemetry.replay.serversize import LABEL_BYTES_EACH, LABELS_EACH, PAIRS_EACH, STORED_SAMPLE_BYTES
from muster.telemetry.replay.wal.tally import Counts

KNOWN = Coefficients(0.01, 4e-6, 2e-6, 0.0, 0.0, 1e-7, 5e-8, 2e-8, 1e-8, 5e7, 1500.0, 0.0, 0.0, 0.0, 10.0)
SHAPES = [(5_000, 1), (50_000, 1), (200_000, 1), (20_000, 100), (50_000, 20), (6_000, 360), (3_000, 900)]


def runs(known: Coefficients, cores: tuple[int, ...] = (1, 2)) -> list[Run]:
    found = []
    for series, each in SHAPES:
        size = ReplaySize(series, series * each, series * 200)
        for number in cores:
            made = predict(size, number, known)
            found.append(Run(size, number, made.time_s, made.peak_memory_bytes))
    return found


def test_fit_recovers_the_model_that_made_the_figures() -> None:
    found = fit(runs(KNOWN))
    large = ReplaySize(5_000_000, 1_000_000_000, 1_000_000_000)
    for cores in (1, 2, 16):
        expected, got = predict(large, cores, KNOWN), predict(large, cores, found)
        assert got.time_s == pytest.approx(expected.time_s, rel=0.01)
        assert got.peak_memory_bytes == pytest.approx(expected.peak_memory_bytes, rel=0.01)


def test_fit_with_one_number_of_cores_predicts_for_that_number() -> None:
    found = fit(runs(KNOWN, cores=(2,)))
    size = ReplaySize(1_000_000, 50_000_000, 200_000_000)
    assert predict(size, 2, found).time_s == pytest.approx(predict(size, 2, KNOWN).time_s, rel=0.01)


@given(st.lists(st.floats(0.8, 1.25), min_size=14, max_size=14))
def test_noise_never_gives_negative_costs_or_worse_errors(noise: list[float]) -> None:
    measured = [
        Run(run.size, run.cores, run.time_s * factor, run.peak_memory_bytes * factor)
        for run, factor in zip(runs(KNOWN), noise, strict=True)
    ]
    found = fit(measured)
    assert all(getattr(found, name) >= 0 for name in Coefficients.__struct_fields__)
    for run in measured:
        assert predict(run.size, run.cores, found).time_s == pytest.approx(run.time_s, rel=0.6)


def test_columns_that_say_the_same_are_accepted() -> None:
    assert sum(non_negative([(1.0, 2.0), (2.0, 4.0)], [3.0, 6.0])[i] * (1, 2)[i] for i in range(2)) == pytest.approx(
        3.0
    )


def test_fit_without_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="no replay"):
        fit([])


def test_less_than_a_core_slows_everything_and_is_accepted() -> None:
    size = ReplaySize(100_000, 10_000_000)
    assert predict(size, 0.5, DEFAULT).time_s == pytest.approx(2 * predict(size, 1, DEFAULT).time_s)
    with pytest.raises(ValueError, match="0 cores"):
        predict(size, 0, DEFAULT)


def test_native_histograms_count_by_their_bytes() -> None:
    assert size_of(Counts(series=3, samples=5, histogram_bytes=1000)).samples == 105


@pytest.mark.parametrize("cores", [8, 32, 96])
def test_prometheus_16430_replay_of_70_million_series_within_a_factor_of_two(cores: int) -> None:
    """prometheus/prometheus 16430: 70M series and more took about 25 minutes.

    The report names no interval: we take the default of Prometheus, one minute, and a head of two hours.
    """
    found = predict(ReplaySize(70_000_000, 70_000_000 * 120, 70_000_000 * 230), cores, DEFAULT)
    assert 25 * 60 / 2 <= found.time_s <= 25 * 60 * 2
    assert found.longest_s >= 25 * 60


def test_prometheus_16430_snapshot_and_more_cores_help_little_with_many_series() -> None:
    """prometheus/prometheus 16430: snapshots did little, and replay is serial for the most part.

    The report names no labels: we take as many as for a server that does not show them.
    """
    series = 70_000_000
    labels, pairs = series * LABELS_EACH, round(series * PAIRS_EACH)
    size = ReplaySize(series, series * 10, series * LABEL_BYTES_EACH, labels=labels, label_pairs=pairs)
    with_samples = predict(size, 32, DEFAULT)
    series_only = predict(msgspec.structs.replace(size, samples=0), 32, DEFAULT)
    assert series_only.time_s > 0.75 * with_samples.time_s
    assert predict(size, 64, DEFAULT).time_s > 0.95 * with_samples.time_s


@pytest.mark.parametrize("cores", [4, 8, 16])
def test_prometheus_13617_replay_of_341_segments_within_a_factor_of_two(cores: int) -> None:
    """prometheus/prometheus 13617: a log with 341 segments of 128 MiB took 1257 s, its checkpoint 162 s.

    The report names no series. With 8 million the log has 760 samples of each: 3 hours with one sample each 14 s.
    """
    samples = round(341 * (128 << 20) / STORED_SAMPLE_BYTES)
    found = predict(ReplaySize(8_000_000, samples, 8_000_000 * 230), cores, DEFAULT)
    assert (1257 + 162) / 2 <= found.time_s <= (1257 + 162) * 2


def test_large_servers_are_slower_than_in_proportion() -> None:
    small, large = (predict(ReplaySize(each, each * 100), 2, DEFAULT).time_s for each in (100_000, 1_000_000))
    assert 12 * small < large < 18 * small
