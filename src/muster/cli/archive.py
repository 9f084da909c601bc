"""The working folder as one archive: the same bytes for the same files, without what need not travel."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import os
import re
import tarfile
from pathlib import Path
from typing import NamedTuple

from muster.cli.errors import BadInput

IGNORE_FILES = (".musterignore", ".gitignore")
ALWAYS_IGNORED = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
MAX_FILES = 20_000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024


class Archive(NamedTuple):
    """A packed folder.

    Attributes:
        data: the tar.gz.
        files: how many files are in it.
        largest: the largest of them, with its size in bytes, for saying what to leave out.
    """

    data: bytes
    files: int
    largest: list[tuple[str, int]]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the archive, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


class IgnoreRules:
    """Patterns as in .gitignore (gitignore(5)): later ones win, `!` takes back, `/` anchors, `**` spans folders."""

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
        """Whether a path below the root, with `/` between its parts, is left out."""
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


def pack(folder: Path, leave_out: Path | None = None) -> Archive:
    """Pack a folder, leaving out what .musterignore (or, without one, .gitignore) names and what tools leave behind.

    The same files give the same bytes: entries are sorted, and times and owners are not kept. Links to files are
    packed as the files they point to; links to folders are not followed.

    Args:
        folder: what to pack.
        leave_out: a folder in it that is no code, such as the one with checkpoints.

    Raises:
        BadInput: the folder holds far more than code, or something in it cannot be read.
    """
    lines = [*ALWAYS_IGNORED, *_ignore_lines(folder)]
    if leave_out is not None and leave_out.resolve().is_relative_to(folder.resolve()):
        lines.append(f"/{glob.escape(leave_out.resolve().relative_to(folder.resolve()).as_posix())}/")
    rules = IgnoreRules(lines)
    files = sorted(_files(folder, rules))
    sizes = sorted(((name, (folder / name).stat().st_size) for name in files), key=lambda pair: -pair[1])
    if len(files) > MAX_FILES or sum(size for _, size in sizes) > MAX_UNPACKED_BYTES:
        raise BadInput(
            f"{folder} holds {len(files)} files, {sum(size for _, size in sizes) / 1e6:.0f} MB: too much to ship",
            "name a smaller folder with --code DIR, leave things out with a .musterignore, or use --code none",
        )
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in files:
            path = folder / name
            try:
                content = path.read_bytes()
            except OSError as error:
                raise BadInput(f"cannot read {path}: {error.strerror}", "leave it out with a .musterignore") from None
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return Archive(buffer.getvalue(), len(files), sizes[:3])


def _ignore_lines(folder: Path) -> list[str]:
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            return path.read_text(errors="replace").splitlines()
    return []


def _files(folder: Path, rules: IgnoreRules) -> list[str]:
    """Paths of the files to pack, relative to the folder."""
    found = []
    for current, folders, names in os.walk(folder):
        below = os.path.relpath(current, folder)
        prefix = "" if below == "." else f"{below}/"
        folders[:] = [name for name in folders if not rules.ignores(prefix + name, True)]
        found += [
            prefix + name
            for name in names
            if not rules.ignores(prefix + name, False) and (Path(current) / name).is_file()
        ]
    return found
