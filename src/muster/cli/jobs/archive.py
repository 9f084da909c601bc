"""Packs the working folder into an archive. The same files give the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from muster.cli.errors import BadInput
from muster.sdk import records

IGNORE_FILES = (".musterignore", ".gitignore")
ALWAYS_IGNORED = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".muster/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
_NAMED = 5
"""Most links and folders that a note names; it counts the rest."""
MAX_FILES = 20_000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024


class Archive(NamedTuple):
    """A packed folder.

    Attributes:
        data: the tar.gz.
        files: how many files are in it.
        largest: the largest files with their sizes in bytes, for a message that proposes files to leave out.
        notes: texts for the user about links, and about folders of checkpoints that were left out.
    """

    data: bytes
    files: int
    largest: list[tuple[str, int]]
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the archive, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


class IgnoreRules:
    """Patterns as in .gitignore (gitignore(5)): later ones win, `!` includes again, `/` anchors, `**` spans folders."""

    def __init__(self, lines: list[str]) -> None:
        """Read the patterns; empty lines and comments are skipped."""
        self._rules: list[tuple[re.Pattern[str], bool, bool]] = []
        for line in lines:
            pattern = line.rstrip()
            if not pattern or pattern.startswith("#"):
                continue
            negated = pattern.startswith("!")
            pattern = pattern.removeprefix("!").removeprefix("\\")
            only_folders = pattern.endswith("/")
            pattern = pattern.rstrip("/")
            anchored = "/" in pattern
            body = _regex(pattern.lstrip("/"))
            self._rules.append((re.compile(body if anchored else f"(?:.*/)?{body}"), negated, only_folders))

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Returns whether a path below the root, with `/` between its parts, is left out."""
        ignored = False
        for pattern, negated, only_folders in self._rules:
            if (is_folder or not only_folders) and pattern.fullmatch(path):
                ignored = not negated
        return ignored


def _regex(pattern: str) -> str:
    """A glob in gitignore's sense as a regular expression."""
    out = []
    at = 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            out.append("(?:.*/)?")
            at += 3
        elif rest.startswith("**"):
            out.append(".*")
            at += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            at += 1
        elif rest[0] == "?":
            out.append("[^/]")
            at += 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inner = rest[1:end]
            out.append("[" + ("^" + inner[1:] if inner[0] == "!" else inner).replace("\\", "\\\\") + "]")
            at += end + 1
        else:
            out.append(re.escape(rest[0]))
            at += 1
    return "".join(out)


def pack(folder: Path, leave_out: Sequence[Path] = ()) -> Archive:
    """Pack a folder, except files that .musterignore (or else .gitignore) names, and files that tools create.

    The same files give the same bytes: entries are sorted, and times and owners are not kept. A link to a file is
    packed as that file. Links to folders, links to missing files and folders of checkpoints are left out, and the notes
    name them. A file that is removed during packing is left out as well.

    Args:
        folder: what to pack.
        leave_out: folders inside that are not code, such as those with checkpoints and data.

    Raises:
        BadInput: the folder is too large, or a file in it cannot be read.
    """
    lines = [*ALWAYS_IGNORED, *_ignore_lines(folder)]
    found = _find(folder, IgnoreRules(lines), leave_out)
    files = found.files
    sizes = sorted(((name, _size(folder / name)) for name in files), key=lambda pair: -pair[1])
    if len(files) > MAX_FILES or sum(size for _, size in sizes) > MAX_UNPACKED_BYTES:
        raise BadInput(
            f"{folder} holds {len(files)} files, {sum(size for _, size in sizes) / 1e6:.0f} MB: too much to ship",
            "name a smaller folder with --code DIR, leave things out with a .musterignore, or use --code none",
        )
    buffer, packed = io.BytesIO(), 0
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in files:
            path = folder / name
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # another program removed it during packing
            except OSError as error:
                raise BadInput(f"cannot read {path}: {error.strerror}", "leave it out with a .musterignore") from None
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
            packed += 1
    return Archive(buffer.getvalue(), packed, sizes[:3], tuple(_notes(folder, found)))


def _ignore_lines(folder: Path) -> list[str]:
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            return path.read_text(errors="replace").splitlines()
    return []


class _Found(NamedTuple):
    """The content of a folder, as paths relative to it."""

    files: list[str]
    linked_folders: list[str]
    linked_outside: list[str]
    dangling: list[str]
    checkpoints: list[str]


def _find(folder: Path, rules: IgnoreRules, leave_out: Sequence[Path]) -> _Found:
    found = _Found([], [], [], [], [])
    root = folder.resolve()
    given = {each.resolve() for each in leave_out}
    for current, folders, names in os.walk(folder):
        below = os.path.relpath(current, folder)
        prefix = "" if below == "." else f"{below}/"
        for name in sorted(folders):
            path = Path(current) / name
            if rules.ignores(prefix + name, True) or (path.is_symlink() and rules.ignores(prefix + name, False)):
                continue  # .gitignore may name a link to a folder as a file or as a folder
            if path.resolve() in given or (path / records.FOLDER).is_dir():
                found.checkpoints.append(prefix + name)
            elif path.is_symlink():
                found.linked_folders.append(prefix + name)
        left_out = {*found.checkpoints, *found.linked_folders}
        folders[:] = [each for each in folders if prefix + each not in left_out]
        folders[:] = [each for each in folders if not rules.ignores(prefix + each, True)]
        for name in names:
            path = Path(current) / name
            if rules.ignores(prefix + name, False):
                continue
            if path.is_file():
                found.files.append(prefix + name)
                if path.is_symlink() and not path.resolve().is_relative_to(root):
                    found.linked_outside.append(prefix + name)
            elif path.is_symlink():
                found.dangling.append(prefix + name)
    return _Found(*(sorted(each) for each in found))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _notes(folder: Path, found: _Found) -> Iterator[str]:
    def targets(names: list[str]) -> str:
        return ", ".join(f"{name} -> {os.readlink(folder / name)}" for name in names[:_NAMED]) + more(names)

    def more(names: list[str]) -> str:
        return f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""

    if found.checkpoints:
        names = ", ".join(f"{name}/" for name in found.checkpoints[:_NAMED]) + more(found.checkpoints)
        yield f"checkpoints and data do not travel with the code; left out: {names}"
    if found.linked_folders:
        yield (
            f"links to folders do not travel with the code; left out: {targets(found.linked_folders)}. Copy what the "
            "program needs, or name them in .musterignore"
        )
    if found.linked_outside:
        yield (
            f"links to files outside of {folder} travel as the files they point to: {targets(found.linked_outside)}. "
            "Name in .musterignore what should not"
        )
    if found.dangling:
        yield f"links that lead nowhere are left out: {targets(found.dangling)}"
