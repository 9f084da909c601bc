"""Formats of shards: grouping of tar members, and damaged archives."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sdk.data import BrokenShard, Format, Piece, stream
from muster.sdk.data.formats.base import Read
from muster.sdk.data.formats.tar import TarFormat
from muster.sdk.data.index import Shard
from muster.sdk.data.indexing import scan
from tests.support.shardstore import ShardStore, tar_of


def samples(data: bytes) -> list[tuple[str, dict[str, bytes]]]:
    """All samples of a tar shard, found and parsed as the reader does."""
    store = ShardStore({"a.tar": data})
    spans = scan(store, TarFormat(), Shard("a.tar", len(data), ""))
    return [
        TarFormat().parse("a.tar", memoryview(data)[start:end])
        for start, end in zip(spans.starts, spans.ends, strict=True)
    ]


def test_members_are_grouped_by_the_name_up_to_the_first_dot_of_the_base_name() -> None:
    data = tar_of(
        [
            ("a.b/1.jpg", b"1"),
            ("a.b/1.seg.PNG", b"2"),
            ("a.b/2.jpg", b"3"),
            ("c/2.jpg", b"4"),
            ("README", b"no extension"),
            (".hidden.txt", b"hidden"),
            ("__index__.json", b"not meta data"),
        ]
    )
    assert samples(data) == [
        ("a.b/1", {"jpg": b"1", "seg.png": b"2"}),
        ("a.b/2", {"jpg": b"3"}),
        ("c/2", {"jpg": b"4"}),
        ("__index__", {"json": b"not meta data"}),
    ]


def test_same_prefix_further_on_is_another_sample() -> None:
    data = tar_of([("1.jpg", b"1"), ("2.jpg", b"2"), ("1.cls", b"3")])
    assert [fields for _, fields in samples(data)] == [{"jpg": b"1"}, {"jpg": b"2"}, {"cls": b"3"}]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_tar_dialects_are_read(format: int) -> None:
    long = "d" * 90 + "/" + "n" * 80
    names = ["short", "ünïcode", long] if format != tarfile.USTAR_FORMAT else ["short", long]
    data = tar_of([(f"{name}.{e}", f"{name}{e}".encode() * 99) for name in names for e in ("a", "b")], format)
    expected = [(name, {e: f"{name}{e}".encode() * 99 for e in ("a", "b")}) for name in names]
    assert samples(data) == expected


def test_archive_of_gnu_tar_with_folders_and_links_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("1.txt", "2.txt"):
        (tmp_path / "set" / name).write_text(name)
    (tmp_path / "set" / "3.txt").symlink_to("1.txt")
    subprocess.run(["tar", "--sort=name", "-cf", "x.tar", "set"], cwd=tmp_path, check=True, timeout=20)
    assert samples((tmp_path / "x.tar").read_bytes()) == [
        ("set/1", {"txt": b"1.txt"}),
        ("set/2", {"txt": b"2.txt"}),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=1200)), max_size=8))
def test_samples_equal_those_that_tarfile_reads(fields: list[tuple[str, bytes]]) -> None:
    data = tar_of([(f"{number}/{name}.bin", content) for number, (name, content) in enumerate(fields)])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [archive.extractfile(member).read() for member in archive]  # type: ignore[union-attr]
    assert [found["bin"] for _, found in samples(data)] == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_truncated_archive_is_always_noticed(data: st.DataObject) -> None:
    """Also between two members: the end marker is missing."""
    archive = tar_of([(f"{number}.txt", b"x" * 700) for number in range(4)])
    end = 4 * (512 + 1024)
    length = data.draw(st.one_of(st.integers(1, end), st.sampled_from([512, 1536, 3072, end])))
    with pytest.raises(BrokenShard, match=r"a\.tar: truncated"):
        samples(archive[:length])


def test_damaged_archives_are_refused_with_the_reason() -> None:
    good = tar_of([("1.txt", b"x" * 700), ("2.txt", b"y")])
    flipped = good[:3] + b"!" + good[4:]
    sparse = bytearray(tar_of([("1.txt", b"")]))
    sparse[156] = ord("S")
    sparse[148:156] = b"%06o\0 " % (sum(sparse[:148]) + 8 * 32 + sum(sparse[156:512]))
    for data, message in (
        (flipped, "header at byte 0 has a wrong checksum"),
        (b"not a tar file" * 100, "header at byte 0 has"),
        (tar_of([("1.txt", b"a"), ("1.txt", b"b")]), "sample '1' has two members 'txt'"),
        (bytes(sparse), "sparse"),
    ):
        with pytest.raises(BrokenShard, match=message):
            samples(data)


def test_plain_files_are_one_sample_each_and_are_not_read_for_the_index() -> None:
    store = ShardStore({"a.b/cat.x.JPG": b"1", "dog": b"2", "e/": b"", ".git/config": b"no"})
    with stream(store=store, seed=1, global_batch=2, shuffle=False, epochs=1) as batches:
        assert store.shards_read() == set()
        assert [(sample.key, sample.data) for batch in batches for sample in batch] == [
            ("a.b/cat", {"x.jpg": b"1"}),
            ("dog", {"": b"2"}),
        ]


def test_tar_files_are_recognised_and_other_objects_beside_them_left_out() -> None:
    store = ShardStore({"README.md": b"text", "x.tar": tar_of([("1.txt", b"a")])})
    with stream(store=store, seed=1, global_batch=1) as batches:
        assert next(batches)[0].data == {"txt": b"a"}
    store = ShardStore({"README.md": b"text", "x.tar": tar_of([("1.txt", b"a")])})
    with stream(store=store, seed=1, global_batch=2, format="plain") as batches:
        assert {sample.shard for sample in next(batches)} == {"README.md", "x.tar"}


def test_compressed_tar_files_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x\.tar\.gz is compressed.*decompress it"):
        stream(store=ShardStore({"x.tar.gz": b"1"}), seed=1, global_batch=1)


class LineFormat(Format):
    """Each line is a sample."""

    name = "lines"
    scans = True

    def accepts(self, key: str) -> bool:
        return key.endswith(".txt")

    def pieces(self, read: Read, size_bytes: int) -> list[Piece]:  # type: ignore[override]
        start, found = 0, []
        for line in read(0, size_bytes).splitlines(keepends=True):
            found.append(Piece(start, start + len(line), True))
            start += len(line)
        return found

    def parse(self, key: str, data: memoryview) -> tuple[str, dict[str, bytes]]:
        return key, {"line": bytes(data).rstrip()}


def test_other_formats_fit_the_interface() -> None:
    store = ShardStore({"a.txt": b"one\ntwo\n", "b.txt": b"three\n"})
    with stream(store=store, seed=1, global_batch=3, shuffle=False, format=LineFormat()) as batches:
        assert [sample.data["line"] for sample in next(batches)] == [b"one", b"two", b"three"]
