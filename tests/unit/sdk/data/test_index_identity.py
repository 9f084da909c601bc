"""Which shards are those that were indexed: the bytes decide, not the ETags."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from muster.sdk.data import BadCursor, Stream, stream
from muster.sdk.data.errors import ObjectChanged
from muster.sdk.data.index import NAME
from tests.support.shardstore import shard_of, tar_of

BATCH = 8
SHARDS = [f"shard-{number}.tar" for number in range(4)]
BAD = SHARDS[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An indexed folder of 4 shards with 10 samples each."""
    data = tmp_path / "data"
    data.mkdir()
    for number, name in enumerate(SHARDS):
        (data / name).write_bytes(shard_of(number, 10))
    epoch(data).close()
    return data


def epoch(folder: Path, **options: object) -> Stream:
    return stream(str(folder), seed=3, global_batch=BATCH, epochs=1, **options)  # type: ignore[arg-type]


def keys(batches: Stream) -> list[str]:
    with batches:
        return [sample.key for batch in batches for sample in batch]  # type: ignore[attr-defined]


def replace(file: Path, data: bytes) -> None:
    """Write another file with this name, so that the ETag differs."""
    copy = file.with_name(".copy")
    copy.write_bytes(data)
    os.utime(copy, ns=(1, 1))
    copy.replace(file)


def damaged(data: bytes) -> bytes:
    """One byte of sample 4 is wrong: its first content begins at 512 x 17."""
    return data[:8710] + bytes([data[8710] ^ 1]) + data[8711:]


@pytest.mark.parametrize("index", ["kept", "built again"])
def test_copy_of_a_data_set_continues_from_the_cursor(folder: Path, tmp_path: Path, index: str) -> None:
    expected = keys(epoch(folder))
    with epoch(folder) as batches:
        next(batches)
        cursor = batches.cursor()
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    if index == "built again":
        (copy / NAME).unlink()
    assert keys(epoch(copy, cursor=cursor)) == expected[BATCH:]


def test_shard_that_is_restored_while_it_is_streamed_continues(folder: Path) -> None:
    expected = keys(epoch(folder))
    with epoch(folder, read_ahead_bytes=0) as batches:
        first = [sample.key for sample in next(batches)]  # type: ignore[attr-defined]
        for name in SHARDS:
            replace(folder / name, (folder / name).read_bytes())
        assert first + keys(batches) == expected


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_shard_with_another_etag_and_other_bytes_is_refused(folder: Path, policy: str) -> None:
    """It is not skipped: the data set may be another one than that of the cursor."""
    replace(folder / BAD, damaged((folder / BAD).read_bytes()))
    message = rf"{folder}/{BAD} is not the object that was indexed: its ETag and the bytes of sample 4 differ"
    with epoch(folder, bad_shards=policy) as batches, pytest.raises(ObjectChanged, match=message) as caught:
        keys(batches)
    assert caught.value.key == BAD


def test_shard_of_another_size_is_refused_at_once(folder: Path) -> None:
    replace(folder / BAD, (folder / BAD).read_bytes() + bytes(512))
    with pytest.raises(ObjectChanged, match=rf"{BAD} is not .*: it has \d+ bytes instead of \d+\. Restore it"):
        keys(epoch(folder))


def test_index_of_other_bytes_refuses_the_cursor(folder: Path) -> None:
    with epoch(folder) as batches:
        cursor = batches.cursor()
    members = [(f"s2/{sample:05d}.txt", b"other") for sample in range(10)]
    replace(folder / BAD, tar_of(members).ljust((folder / BAD).stat().st_size, b"\0"))
    (folder / NAME).unlink()
    with pytest.raises(BadCursor, match="shards were added, removed or changed"):
        epoch(folder, cursor=cursor)


def test_plain_file_with_another_etag_needs_the_index_built_again(tmp_path: Path) -> None:
    """Its bytes cannot be checked, so a person confirms that they are the same by deleting the index."""
    for number in range(10):
        (tmp_path / f"{number}.txt").write_bytes(b"x")
    expected = keys(epoch(tmp_path))
    with epoch(tmp_path) as batches:
        cursor = batches.cursor()
    replace(tmp_path / "5.txt", b"x")
    replace(tmp_path / "6.txt", b"x")
    for options in ({}, {"cursor": cursor}):
        with pytest.raises(ObjectChanged, match=r"no checksums .* If its bytes are the same, delete .*index.json.gz"):
            keys(stream(str(tmp_path), seed=3, global_batch=BATCH, epochs=2, **options))
    (tmp_path / NAME).unlink()
    assert keys(epoch(tmp_path, cursor=cursor)) == expected
