"""A log file is followed through rotation: every line once, and nothing left out without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.fleet.health.finding import Finding
from muster.fleet.health.logfile import LogFile


class Reader:
    """What one LogFile gave."""

    def __init__(self, path: Path) -> None:
        self.file = LogFile(path)
        self.codes: list[str] = []

    def lines(self) -> list[str]:
        """What came since the last call."""
        data = b""
        for piece in self.file.read(now_s=7.0):
            if isinstance(piece, Finding):
                assert (piece.check, piece.first_s) == ("kernel-log", 7.0)
                assert piece.component.startswith(str(self.file.path))
                self.codes.append(piece.code)
            else:
                data += piece
        return [line for line in data.decode().split("\n") if line]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kern.log"


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_existing_lines_come_first_and_each_line_once(path: Path) -> None:
    add(path.with_name("kern.log.1"), "a\nb")
    add(path, "c\nd\n")
    reader = Reader(path)
    assert reader.lines() == ["a", "b", "c", "d"]
    assert reader.lines() == []
    add(path, "e\n")
    assert reader.lines() == ["e"]
    assert reader.codes == []


def test_a_renamed_file_is_read_to_its_end(path: Path) -> None:
    add(path, "a\n")
    reader = Reader(path)
    reader.lines()
    add(path, "b\n")
    path.rename(path.with_name("kern.log.1"))
    add(path.with_name("kern.log.1"), "c")
    add(path, "d\n")
    assert reader.lines() == ["b", "c", "d"]
    assert reader.codes == []


def test_between_two_files_the_old_one_is_still_read(path: Path) -> None:
    add(path, "a\n")
    reader = Reader(path)
    reader.lines()
    old = path.rename(path.with_name("kern.log.1"))
    add(old, "b\n")
    assert reader.lines() == ["b"]
    add(old, "c\n")
    add(path, "d\n")
    assert reader.lines() == ["c", "d"]


@pytest.mark.parametrize("after", ["b\n", "something longer than what was there before\n"])
def test_truncated_file_is_read_again_and_reported(path: Path, after: str) -> None:
    add(path, "a line of the old file\n")
    reader = Reader(path)
    reader.lines()
    path.write_text(after)  # copytruncate: the same file, another text
    assert reader.lines() == [after.strip()]
    assert reader.codes == ["truncated"]


def test_a_missing_file_is_said_once_and_read_when_it_comes(path: Path) -> None:
    reader = Reader(path)
    assert reader.lines() == reader.lines() == []
    assert reader.codes == ["missing"]
    add(path, "a\n")
    assert reader.lines() == ["a"]


def test_missing_file_is_reported(path: Path) -> None:
    path.mkdir()
    reader = Reader(path)
    assert reader.lines() == []
    assert reader.codes == ["unreadable"]


def test_without_permission_there_is_a_finding_and_no_crash(path: Path) -> None:
    add(path, "a\n")
    path.chmod(0)
    reader = Reader(path)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        assert reader.lines() == []
    finally:
        os.seteuid(user)
    assert set(reader.codes) == {"permission"}
    path.chmod(0o600)
    assert reader.lines() == ["a"]
