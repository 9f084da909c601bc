"""Folders of a database: counts, damage, growth and folders that are something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from muster.telemetry.replay.wal import folder as folder_module
from muster.telemetry.replay.wal import labelpairs
from muster.telemetry.replay.wal import tally as tally_module
from muster.telemetry.replay.wal.compression import MissingExtra
from muster.telemetry.replay.wal.folder import Folder, FolderError, read_folder
from muster.telemetry.replay.wal.fragments import crc32c
from tests.support.walwriter import (
    PAGE,
    samples_record,
    samples_with_start_record,
    segment,
    series_record,
    write_segment,
)

LABELS = {"__name__": "up", "job": "node"}
LABEL_BYTES = len("__name__upjobnode")


def many_series(first: int, number: int) -> bytes:
    return series_record({first + each: {**LABELS, "pod": "x" * 200} for each in range(number)})


def read(data: Path) -> Folder:
    return read_folder(data)


def test_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_series_and_samples_are_counted(tmp_path: Path, compression: Any) -> None:
    records = [series_record({1: LABELS, 7: LABELS}), samples_record([1, 7]), samples_record([1, 7, 900])]
    write_segment(tmp_path / "wal", 0, segment(records, compression))
    found = read(tmp_path)
    assert (found.counts.series, found.counts.samples, found.counts.label_bytes) == (2, 5, 2 * LABEL_BYTES)
    assert found.counts.labels == 2 * len(LABELS)
    assert (found.damage, found.growing, found.partly_read, found.checkpoint) == (None, False, False, None)


@pytest.mark.parametrize("explicit", [False, True])
def test_samples_with_start_times_are_counted(tmp_path: Path, explicit: bool) -> None:
    write_segment(tmp_path / "wal", 0, segment([samples_with_start_record(9, explicit)]))
    assert read(tmp_path).counts.samples == 9


def pods(first: int, number: int) -> bytes:
    """Series of 500 metrics, two for each pod."""
    return series_record(
        {
            each: {"__name__": f"metric_{each % 500}", "pod": f"pod-{each // 2:06d}"}
            for each in range(first, first + number)
        }
    )


def test_each_pair_of_name_and_value_counts_once(tmp_path: Path) -> None:
    same_value = series_record({1: {"a": "x", "b": "x"}, 2: {"a": "x", "b": "xx"}, 3: {"ax": "", "a": "x"}})
    write_segment(tmp_path / "wal", 0, segment([same_value, same_value, pods(1, 1000)]))
    assert read(tmp_path).counts.label_pairs == 4 + 500 + 501


@pytest.mark.slow
def test_pairs_of_a_log_that_is_decoded_in_part_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of pods grow with the log, and names of metrics do not."""
    monkeypatch.setattr(tally_module, "_ALWAYS_BYTES", 0)
    monkeypatch.setattr(folder_module, "_DECODE_BYTES", 100_000)
    content = segment([pods(first, 1000) for first in range(0, 60_000, 1000)])
    assert len(content) > 300_000
    write_segment(tmp_path / "wal", 0, content)
    counts = read(tmp_path).counts
    assert counts.series == pytest.approx(60_000, rel=0.05)
    assert counts.label_pairs == pytest.approx(30_500, rel=0.03)


@pytest.mark.slow
def test_pairs_of_a_log_whose_segments_are_read_in_part_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = [segment([pods(number * 1000, 1000)]) for number in range(20)]
    for number, each in enumerate(content):
        write_segment(tmp_path / "wal", number, each)
    monkeypatch.setattr(folder_module, "READ_BYTES_MAX", sum(map(len, content)) // 4)
    found = read(tmp_path)
    assert found.partly_read
    assert found.counts.series == pytest.approx(20_000, rel=0.05)
    assert found.counts.label_pairs == pytest.approx(10_500, rel=0.05)


def test_number_of_pairs_is_estimated_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelpairs, "_KEPT_MAX", 2000)
    pairs = labelpairs.LabelPairs()
    for record in range(100):
        pairs.add((crc32(b"%d" % each) for each in range(record * 500, (record + 2) * 500)), record)
        assert len(pairs.kept) <= 2000
    assert pairs.number(1.0) == pytest.approx(50_500, rel=0.1)


@pytest.mark.slow
def test_record_over_several_pages_is_one_record(tmp_path: Path) -> None:
    content = segment([many_series(1, 1000), samples_record(range(1, 1001))], "none")
    assert len(content) > 6 * PAGE
    write_segment(tmp_path / "wal", 0, content)
    assert (read(tmp_path).counts.series, read(tmp_path).counts.samples) == (1000, 1000)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("room", [0, 1, 2, 3, 4, 5])
def test_record_that_begins_with_a_few_bytes_at_the_end_of_a_page_is_whole(
    tmp_path: Path, room: int, compression: Any
) -> None:
    header = 7
    page = segment([b"\x06" + bytes(PAGE - header - (header + room) - 1)], "none")
    write_segment(tmp_path / "wal", 0, segment([samples_record(range(1, 200))], compression, page))
    found = read(tmp_path)
    assert len(page) == PAGE - header - room
    assert (found.damage, found.counts.samples) == (None, 199)


def test_only_segments_after_the_newest_checkpoint_are_replayed(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    for number in range(4):
        write_segment(wal, number, segment([samples_record([1, 2])]))
    write_segment(wal / "checkpoint.00000000", 0, segment([many_series(1, 50)]))
    write_segment(wal / "checkpoint.00000002", 0, segment([many_series(1, 5)]))
    write_segment(wal / "checkpoint.00000009.tmp", 0, segment([many_series(1, 500)]))
    found = read(tmp_path)
    assert found.checkpoint is not None
    assert (found.checkpoint.series, found.segments, found.counts.samples) == (5, 1, 2)


def test_histograms_and_other_records_are_bytes_and_not_samples(tmp_path: Path) -> None:
    write_segment(tmp_path / "wal", 0, segment([b"\x07" + bytes(99), b"\x04" + bytes(49), b"\x63" + bytes(9)]))
    counts = read(tmp_path).counts
    assert (counts.samples, counts.histogram_bytes, counts.other_bytes) == (0, 100, 60)


@pytest.mark.parametrize("cut", [1, 3, 8, 40])
def test_torn_end_of_the_newest_segment_is_not_damage(tmp_path: Path, cut: int) -> None:
    records = [series_record({1: LABELS}), samples_record([1, 2, 3])]
    write_segment(tmp_path / "wal", 0, segment(records, "none")[:-cut])
    found = read(tmp_path)
    assert found.damage is None
    assert (found.counts.series, found.counts.samples) == (1, 0)


def test_torn_older_segment_loses_what_is_newer(tmp_path: Path) -> None:
    content = segment([samples_record([1, 2])])
    write_segment(tmp_path / "wal", 0, content + content[:-3])
    newer = write_segment(tmp_path / "wal", 1, content * 3)
    damage = read(tmp_path).damage
    assert damage is not None
    assert (damage.file, damage.offset, damage.fatal) == ("wal/00000000", len(content), False)
    assert damage.lost_bytes == len(content) - 3 + newer.stat().st_size
    assert read(tmp_path).counts.samples == 2


@pytest.mark.parametrize(
    ("at", "to", "reason"),
    [
        (0, b"\x07", "unknown type"),
        (0, b"\x0b", "not in order"),
        (1, b"\xff\xff", "does not fit"),
        (3, b"\x00\x00\x00\x00", "checksum"),
        (7, b"\xff\xff\xff\xff\x0f", "promises no possible size"),
        (0, b"\x00", "not empty"),
    ],
)
def test_damage_is_found_where_it_is(tmp_path: Path, at: int, to: bytes, reason: str) -> None:
    first, second = segment([samples_record([1])]), segment([samples_record([2, 3])])
    broken = second[:at] + to + second[at + len(to) :]
    write_segment(tmp_path / "wal", 0, first + broken + second)
    damage = read(tmp_path).damage
    assert damage is not None
    assert damage.offset == len(first)
    assert reason in damage.reason
    assert read(tmp_path).counts.samples == 1


@pytest.mark.parametrize("log", ["wal", "wbl", "wal/checkpoint.00000001"])
def test_missing_segment_is_fatal(tmp_path: Path, log: str) -> None:
    for number in (2, 3):
        write_segment(tmp_path / "wal", number, segment([samples_record([1])]))
    for number in (4, 6):
        write_segment(tmp_path / log, number, segment([samples_record([1])]))
    damage = read(tmp_path).damage
    assert damage is not None
    assert (damage.file, damage.fatal, damage.reason) == (
        f"{log}/00000006", True, "the segment 00000005 before it is missing",
    )  # fmt: skip


def test_damaged_checkpoint_is_fatal(tmp_path: Path) -> None:
    write_segment(tmp_path / "wal/checkpoint.00000001", 0, segment([many_series(1, 5)])[:-5])
    write_segment(tmp_path / "wal", 2, segment([samples_record([1])]))
    damage = read(tmp_path).damage
    assert damage is not None
    assert damage.fatal


def test_log_that_grows_while_it_is_read_is_reported(tmp_path: Path) -> None:
    content = segment([samples_record([1, 2])])
    file = write_segment(tmp_path / "wal", 0, content)
    real = folder_module._read_segment

    def grow(*args: Any) -> Any:
        with file.open("ab") as more:
            more.write(content)
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "_read_segment", grow)
        found = read(tmp_path)
    assert found.growing
    assert found.counts.samples == 2  # as much as there was at first


def test_segments_that_vanish_are_read_again_from_the_new_checkpoint(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    for number in range(3):
        write_segment(wal, number, segment([samples_record([1, 2])]))
    real = folder_module._read_segment

    def truncate(file: Path, *args: Any) -> Any:
        if not (wal / "checkpoint.00000001").exists():
            write_segment(wal / "checkpoint.00000001", 0, segment([many_series(1, 3)]))
            (wal / "00000000").unlink()
        return real(file, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "_read_segment", truncate)
        found = read(tmp_path)
    assert (found.counts.series, found.counts.samples) == (3, 2)


def test_long_log_is_read_in_part_and_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = segment([samples_record(range(1, 101)) for _ in range(20)])
    for number in range(12):
        write_segment(tmp_path / "wal", number, content)
    monkeypatch.setattr(folder_module, "READ_BYTES_MAX", 4 * len(content))
    found = read(tmp_path)
    assert found.partly_read
    assert found.counts.samples == pytest.approx(12 * 2000, rel=0.01)
    assert found.counts.stored_bytes == 12 * len(content)


def test_empty_log_is_nothing_to_replay(tmp_path: Path) -> None:
    write_segment(tmp_path / "wal", 0, b"")
    assert read(tmp_path).counts.series == 0
    (tmp_path / "wal" / "00000000").unlink()
    assert read(tmp_path).counts.samples == 0


def test_folder_of_the_log_itself_is_accepted(tmp_path: Path) -> None:
    write_segment(tmp_path / "wal", 0, segment([samples_record([1, 2])]))
    write_segment(tmp_path / "chunks_head", 1, bytes(100))
    found = read(tmp_path / "wal")
    assert (found.counts.samples, found.chunks_bytes) == (2, 100)


@pytest.mark.parametrize("name", ["missing", "file", "other"])
def test_other_folder_is_refused_with_what_to_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    with pytest.raises(FolderError, match=r"--storage\.tsdb\.path"):
        read(tmp_path / name)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "checkpoint.00000000").touch()  # not a folder
    with pytest.raises(FolderError, match=r"checkpoint.00000000.*as the user of the server"):
        read(tmp_path)


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_segment(tmp_path / "wal", 0, segment([samples_record([1, 2])]))
    monkeypatch.setitem(__import__("sys").modules, "cramjam", None)
    with pytest.raises(MissingExtra, match=r"muster\[telemetry\]"):
        read(tmp_path)


def test_newest_snapshot_counts(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    write_segment(tmp_path / "chunk_snapshot.000001.0000000100", 0, bytes(10))
    write_segment(tmp_path / "chunk_snapshot.000002.0000000200", 0, bytes(30))
    assert read(tmp_path).snapshot_bytes == 30


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_segment_that_is_not_a_file_is_named_and_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "wal").mkdir()
    make(tmp_path / "wal" / "00000000")
    with pytest.raises(FolderError, match="00000000 is not a regular file"):
        read_folder(tmp_path)
