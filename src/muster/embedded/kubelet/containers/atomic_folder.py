"""Folders whose files change atomically, as in the kubelet's ConfigMap and Secret volumes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

Payload = Mapping[str, tuple[bytes, int]]
"""Relative path -> (content, file mode)."""


def write_atomically(folder: Path, payload: Payload) -> bool:
    """Replace the content of `folder` by `payload`. Readers see either all old files or all new ones.

    The files are in a separate folder, to which the symbolic link `..data` points. Replacing the link is atomic.

    Returns:
        Whether anything changed.

    Raises:
        ValueError: a path leaves the folder.
    """
    for path in payload:
        if path.startswith(("/", "..")) or ".." in Path(path).parts:
            raise ValueError(f"path {path!r} leaves the volume")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "..data"
    if link.is_symlink() and _holds(link.resolve(), payload):
        return False
    before = link.resolve() if link.is_symlink() else None
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    fresh.chmod(0o755)
    for path, (content, mode) in payload.items():
        file = fresh / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
    temporary = folder / "..data_tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(fresh.name)
    os.replace(temporary, link)
    names = {Path(path).parts[0] for path in payload}
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    for entry in folder.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
    return True


def _holds(folder: Path, payload: Payload) -> bool:
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return files.keys() == payload.keys() and all(
        files[path].read_bytes() == content and files[path].stat().st_mode & 0o7777 == mode
        for path, (content, mode) in payload.items()
    )
