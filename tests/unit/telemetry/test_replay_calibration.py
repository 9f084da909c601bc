"""The file of a calibration, and synthetic series."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import cramjam
import msgspec
import pytest

from muster.kube.protobuf import FIXED64, fields, tag
from muster.telemetry.replay.calibration import (
    BadCalibration,
    load_calibration,
    made_now,
    save_calibration,
    this_machine,
)
from muster.telemetry.replay.coverage import coverage_of, outside
from muster.telemetry.replay.defaults import DEFAULT
from muster.telemetry.replay.fit import Run, fit
from muster.telemetry.replay.measuring.calibrate import shapes
from muster.telemetry.replay.measuring.remotewrite import SyntheticSeries
from muster.telemetry.replay.measuring.room import available_memory_bytes
from muster.telemetry.replay.model import OPEN_SAMPLES_MAX, ReplaySize, predict


def test_calibration_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "calibration.json"
    made = made_now("measured", DEFAULT, (Run(ReplaySize(1, 2, 3), 2, 0.5, 1e8),), version="3.1.0")
    save_calibration(file, made)
    assert load_calibration(file) == made
    assert made.machine == this_machine() != ""


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind":"other"}', "\xff"])
def test_other_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadCalibration, match="--calibrate"):
        load_calibration(file)
    with pytest.raises(BadCalibration, match="No such file"):
        load_calibration(tmp_path / "missing")


def test_impossible_coefficients_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    bad = msgspec.structs.replace(DEFAULT, series_serial_s=-1.0)
    save_calibration(file, made_now("measured", bad, version=""))
    with pytest.raises(BadCalibration, match="series_serial_s"):
        load_calibration(file)


def test_calibration_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadCalibration):
        save_calibration(tmp_path / "file" / "below", made_now("measured", DEFAULT, version=""))


def test_shapes_differ_in_series_and_in_samples_for_each() -> None:
    found = shapes(60_000)
    assert len({each.series for each in found}) == len(found)
    assert {each.samples_each for each in found} == {1, 4, 12, 50, 360}
    assert {each.labels for each in found} == {"usual", "long", "many", "own"}
    assert min(each.series for each in shapes(1)) >= 0


def test_logs_with_many_samples_stay_small_when_the_series_are_many() -> None:
    found = shapes(1_000_000)
    assert max(each.series for each in found) == 1_000_000
    assert sum(each.series * each.samples_each for each in found) < 17_000_000


@pytest.mark.parametrize("most_series", [120_000, 1_000_000])
def test_logs_with_label_values_of_their_own_have_several_samples(most_series: int) -> None:
    """Real series have both. A log with only one of them says nothing about both together."""
    own = [each for each in shapes(most_series) if each.labels == "own"]
    assert len({each.samples_each for each in own}) > 1
    assert all(1 < each.samples_each <= OPEN_SAMPLES_MAX for each in own)
    assert all(each.series >= 40_000 for each in own)


@pytest.mark.slow
def test_calibration_separates_the_costs_of_series_labels_and_label_pairs() -> None:
    """Logs whose labels are alike would leave it to noise which of them costs more."""
    known = msgspec.structs.replace(
        DEFAULT,
        series_bytes=600.0,
        label_bytes=60.0,
        label_factor=1.5,
        pair_bytes=200.0,
        label_serial_s=4e-7,
        pair_serial_s=8e-7,
    )
    noise = (1.03, 0.97, 0.98, 1.02, 1.02, 0.97, 1.03)
    runs = []
    for shape, factor in zip(shapes(60_000), noise, strict=True):
        made = SyntheticSeries(shape.series, shape.labels)
        samples = shape.series * shape.samples_each
        size = ReplaySize(shape.series, samples, made.label_bytes, labels=made.labels, label_pairs=made.label_pairs)
        for cores in (1, 2):
            real = predict(size, cores, known)
            runs.append(Run(size, cores, real.time_s * factor, real.peak_memory_bytes * factor))
    found = fit(runs)
    for labels, label_bytes, pairs in ((4, 80, 0.0), (5, 300, 0.1), (8, 130, 1.0), (14, 300, 0.5)):
        size = ReplaySize(
            60_000, 400_000, 60_000 * label_bytes, labels=60_000 * labels, label_pairs=round(60_000 * pairs)
        )
        expected, got = predict(size, 2, known), predict(size, 2, found)
        assert got.time_s == pytest.approx(expected.time_s, rel=0.15)
        assert got.peak_memory_bytes == pytest.approx(expected.peak_memory_bytes, rel=0.15)


@pytest.mark.parametrize("speed", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("noise", [(1.15, 0.9, 1.0, 1.1, 0.87, 0.95, 1.0), (0.87, 1.1, 1.0, 0.9, 1.15, 1.05, 1.0)])
def test_noise_does_not_decide_which_work_costs_more(noise: tuple[float, ...], speed: float) -> None:
    """Seven logs with errors of a tenth do not determine the costs."""
    measured = []
    for shape, factor in zip(shapes(120_000), noise, strict=True):
        pairs = round(shape.series * (1.0 if shape.labels == "own" else 0.25))
        labels = {"long": 4, "many": 16}.get(shape.labels, 8)
        size = ReplaySize(
            shape.series,
            shape.series * shape.samples_each,
            shape.series * 200,
            labels=shape.series * labels,
            label_pairs=pairs,
        )
        real = predict(size, 2, DEFAULT)
        measured.append(Run(size, 2, real.time_s * speed * factor, real.peak_memory_bytes * speed * factor))
    found = fit(measured)
    for labels, pairs in ((6, 1.0), (6, 0.0), (14, 0.1)):
        size = ReplaySize(130_000, 9_000_000, 26_000_000, labels=130_000 * labels, label_pairs=round(130_000 * pairs))
        expected, got = predict(size, 2, DEFAULT), predict(size, 2, found)
        assert got.time_s == pytest.approx(speed * expected.time_s, rel=0.15)
        assert got.peak_memory_bytes == pytest.approx(speed * expected.peak_memory_bytes, rel=0.15)


@pytest.mark.parametrize(
    ("size", "beyond"),
    [
        (ReplaySize(200_000, 2_000_000, 40_000_000, labels=2_000_000), []),
        (ReplaySize(200_001, 1_000_000, 20_000_000, labels=2_000_000), ["series"]),
        (ReplaySize(100_000, 2_000_001, 10_000_000, labels=1_000_000), ["samples"]),
        (ReplaySize(100_000, 1_000_000, 601 * 100_000, labels=1_000_000), ["bytes of labels"]),
        (ReplaySize(100_000, 1_000_000, 10_000_000, labels=2_000_001), ["labels"]),
        (ReplaySize(100_000, 1_000_000, 10_000_000, labels=1_000_000, label_pairs=50_000), []),
        (ReplaySize(100_000, 1_000_000, 10_000_000, labels=1_000_000, label_pairs=50_001), ["label pairs"]),
        (ReplaySize(0, 0, 0), []),
        (ReplaySize(1_000_000, 90_000_000, 1, labels=90_000_000), ["series", "samples", "labels"]),
    ],
)
def test_sizes_beyond_twice_the_measured_ones_are_outside(size: ReplaySize, beyond: list[str]) -> None:
    few = ReplaySize(100_000, 100_000, 30_000_000, labels=400_000, label_pairs=25_000)
    many = ReplaySize(10_000, 1_000_000, 1_000_000, labels=100_000)
    found = outside(size, coverage_of([few, many]))
    assert [f" {word}" in text for word, text in zip(beyond, found, strict=True)] == [True] * len(beyond)


def test_calibration_without_logs_covers_nothing() -> None:
    assert outside(ReplaySize(10, 10, 1000), coverage_of([])) != []


def test_room_is_within_the_limit_of_the_container(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    for folder in (proc, cgroup):
        folder.mkdir()
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_memory_bytes(proc, cgroup) == 4000 * 1024
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert available_memory_bytes(proc, cgroup) == 4000 * 1024
    (cgroup / "memory.max").write_text("5000\n")
    assert available_memory_bytes(proc, cgroup) == 4000
    (cgroup / "memory.max").write_text("500\n")
    assert available_memory_bytes(proc, cgroup) == 0


@pytest.mark.slow
def test_series_with_values_of_their_own_have_a_label_pair_each() -> None:
    """A pod of 500 series has three values of its own: its instance, its node and its name."""
    for number in (1000, 5000):
        shared, own = SyntheticSeries(number), SyntheticSeries(number, "own")
        assert own.label_pairs == number + 500 + 3 * number // 500 + 3
        assert shared.label_pairs == number // 4 + 1 + 500 + 3 * number // 500 + 3


@pytest.mark.slow
def test_synthetic_series_grow_in_bytes_of_labels() -> None:
    assert SyntheticSeries(20).label_bytes == pytest.approx(2 * SyntheticSeries(10).label_bytes, rel=0.01)
    assert len(list(SyntheticSeries(12_500).requests(0, 1))) == 3


def test_series_grow_with_each_sample() -> None:
    """Values that stay the same compress to almost nothing."""
    series = SyntheticSeries(80)
    before = values_of(series.requests(0, 1))
    assert len(before) == 80
    for step in range(1, 80):
        after = values_of(series.requests(step, 1))
        assert all(new > old for old, new in zip(before, after, strict=True))
        before = after


def values_of(bodies: Iterable[bytes]) -> list[float]:
    """The value of each series of these requests (prometheus.WriteRequest: timeseries 1, samples 2, value 1)."""
    found = []
    for body in bodies:
        request = bytes(cramjam.snappy.decompress_raw(body))
        for _, _, begin, end in fields(request, 0, len(request)):
            [sample] = [each for each in fields(request, begin, end) if each[0] == tag(2)]
            [value] = [each for each in fields(request, *sample[2:]) if each[0] == tag(1, FIXED64)]
            found.append(struct.unpack("<d", request[value[2] : value[3]])[0])
    return found
