"""What travels with a job, and that the same files make the same bytes."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.errors import BadInput
from muster.cli.jobs.archive import IgnoreRules, pack


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def test_same_files_same_bytes_whatever_their_times_and_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "a.py", "pkg/b.py")
    write(two, "pkg/b.py", "a.py")
    os.utime(two / "a.py", (1, 1))
    assert pack(one).data == pack(two).data
    (two / "a.py").write_text("other")
    assert pack(one).sha256 != pack(two).sha256


def test_leaves_out_what_tools_leave_behind_and_what_the_ignore_file_names(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "__pycache__/x.pyc", ".git/config", ".venv/bin/python", "data/big.bin", "data/keep.txt")
    (tmp_path / ".musterignore").write_text("# big things\n/data/*\n!data/keep.txt\n")
    assert names(pack(tmp_path).data) == [".musterignore", "data/keep.txt", "train.py"]


def test_musterignore_stands_in_for_gitignore(tmp_path: Path) -> None:
    write(tmp_path, "a.log", "b.txt")
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert "a.log" not in names(pack(tmp_path).data)
    (tmp_path / ".musterignore").write_text("b.txt\n")
    assert "a.log" in names(pack(tmp_path).data)
    assert "b.txt" not in names(pack(tmp_path).data)


def test_folders_with_checkpoints_are_not_code(tmp_path: Path) -> None:
    """Issue 11.13: they were shipped where the path was relative, or another run's; pruning raced with packing."""
    write(tmp_path, "train.py", "out/ckpt/train-1a2b3c4d/step-1", "src/out/ckpt/kept.py")
    archive = pack(tmp_path, [tmp_path / "out" / "ckpt"])
    assert names(archive.data) == ["src/out/ckpt/kept.py", "train.py"]
    assert archive.notes == ("checkpoints and data do not travel with the code; left out: out/ckpt/",)
    assert "out/ckpt/train-1a2b3c4d/step-1" in names(pack(tmp_path, [tmp_path.parent / "elsewhere"]).data)
    write(tmp_path, "out/ckpt/train-1a2b3c4d/.muster/step-1.json")  # by its records it is known without being named
    archive = pack(tmp_path)
    assert names(archive.data) == ["src/out/ckpt/kept.py", "train.py"]
    assert archive.notes == ("checkpoints and data do not travel with the code; left out: out/ckpt/train-1a2b3c4d/",)
    (tmp_path / ".musterignore").write_text("out/\n")
    assert pack(tmp_path).notes == (), "the user knows"


def test_a_file_that_goes_while_the_folder_is_packed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 11.13: a job that runs removes old checkpoints at any moment."""
    write(tmp_path, "train.py", "old/step-1")
    read = Path.read_bytes

    def gone(path: Path) -> bytes:
        if path.name == "step-1":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", gone)
    archive = pack(tmp_path)
    assert (names(archive.data), archive.files) == (["train.py"], 1)


def test_links_that_do_not_travel_as_they_are_are_named(tmp_path: Path) -> None:
    """Issue 11.12: links to folders were left out in silence, links to files outside followed."""
    code = tmp_path / "code"
    write(code, "train.py", "pkg/a.py")
    write(tmp_path, "data/1", "secret")
    (code / "inside.py").symlink_to("train.py")
    (code / "data").symlink_to("../data")
    (code / "pkg" / "again").symlink_to(".")
    (code / "secret").symlink_to("../secret")
    (code / "gone").symlink_to("nowhere")
    archive = pack(code)
    assert names(archive.data) == ["inside.py", "pkg/a.py", "secret", "train.py"]
    folders, outside, dangling = archive.notes
    assert "links to folders do not travel with the code; left out: data -> ../data, pkg/again -> ." in folders
    assert f"outside of {code} travel as the files they point to: secret -> ../secret." in outside
    assert dangling == "links that lead nowhere are left out: gone -> nowhere"
    (code / ".musterignore").write_text("data\nagain/\nsecret\ngone\n")
    archive = pack(code)
    assert (names(archive.data), archive.notes) == ([".musterignore", "inside.py", "pkg/a.py", "train.py"], ())
    for number in range(7):
        (code / f"link{number}").symlink_to("../data")
    assert "link4 -> ../data and 2 more" in pack(code).notes[0]


def test_executable_bit_survives_and_links_to_files_become_files(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "target.txt")
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "link.txt").symlink_to("target.txt")
    (tmp_path / "dangling").symlink_to("nowhere")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path).data)) as tar:
        assert tar.getmember("run.sh").mode == 0o755
        assert tar.getmember("target.txt").mode == 0o644
        assert tar.getmember("link.txt").isreg()
        assert "dangling" not in tar.getnames()


def test_refuses_a_folder_without_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", "b", "c")
    monkeypatch.setattr("muster.cli.jobs.archive.MAX_FILES", 2)
    with pytest.raises(BadInput, match="3 files"):
        pack(tmp_path)


PATHS = ["a", "a.log", "b/a.log", "b/c/a.log", "b/c/d", "logs/x", "b/logs/x", "doc/a.txt", "doc/x/a.txt", "#x", "[ab]"]
PATTERNS = ["*.log", "/a.log", "b/", "b/*.log", "b/**", "**/logs", "doc/**/a.txt", "!b/c/a.log", "!a.log", "?", "logs",
            "/b/c", "[!x]", "\\#x", "#x", "", "doc/*", "a"]  # fmt: skip


@given(st.lists(st.sampled_from(PATTERNS), max_size=5))
def test_ignores_what_git_ignores(tmp_path_factory: pytest.TempPathFactory, patterns: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "git-peer"
    if not root.exists():
        write(root, *PATHS)
        subprocess.run(["git", "init", "--quiet", root], check=True)
    (root / ".gitignore").write_text("".join(f"{pattern}\n" for pattern in patterns))
    asked = subprocess.run(
        ["git", "-C", root, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    rules = IgnoreRules(patterns)
    kept = [
        path
        for path in PATHS
        if not rules.ignores(path, False)
        and not any(rules.ignores("/".join(path.split("/")[:depth]), True) for depth in range(1, path.count("/") + 1))
    ]
    assert sorted(kept) == sorted(set(asked.stdout.split()) - {".gitignore"})
