"""Names of samples."""

from __future__ import annotations


def split(path: str) -> tuple[str, str]:
    """Split at the first dot of the base name: "a.b/c.seg.PNG" gives ("a.b/c", "seg.png")."""
    folder, slash, base = path.rpartition("/")
    name, _, extension = base.partition(".")
    return folder + slash + name, extension.lower()
