"""Names of a checkpoint's objects below the job's folder or URL."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from muster.sdk import records

MANIFEST = "manifest.json"
PARTS = "parts/"
STORES = ("s3", "gs", "az", "memory")
"""Schemes of URLs that Muster reads and writes. Other URLs are for the program alone."""
_NAME = re.compile(r"step-(\d{1,20})-attempt-(\d{1,20})(?:-(\d{1,20}))?$")


def checkpoint_name(step: int, attempt: int, again: int = 0) -> str:
    """The name of a checkpoint; `again` counts earlier saves of the same step."""
    name = f"step-{step:08d}-attempt-{attempt}"
    return f"{name}-{again}" if again else name


def order_of(name: str) -> tuple[int, int, int] | None:
    """(step, attempt, times saved before) of a name; None if it is not a checkpoint's name."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def unfinished_name(name: str, writer: str = "") -> str:
    """The name of a checkpoint while it is written. `writer` makes it the name of one process.

    It begins with a dot, so that programs that list the folder do not take it for a checkpoint. It has a second dot,
    because `torch.save` refuses a path if nothing stands before the last dot of its file name.
    """
    return f".writing-{name}" + (f"-{writer}" if writer else "") + ".tmp"


def rank_name(rank: int) -> str:
    """The folder of a rank's shards, relative to the checkpoint; the shard itself if the rank wrote one file."""
    return f"rank-{rank:05d}"


def part_name(rank: int) -> str:
    """The part record of a rank, relative to the checkpoint."""
    return f"{PARTS}{rank_name(rank)}.json"


def record_key(name: str) -> str:
    """The record of a checkpoint, relative to the job's URL."""
    return f"{records.FOLDER}/{records.file_name(name)}"


def is_url(folder: str) -> bool:
    """Returns whether a folder is in an object store. A file:// URL is an ordinary folder."""
    return "://" in folder and not folder.startswith("file://")


def plain(folder: str) -> str:
    """The path of a file:// URL; other folders as they are."""
    return unquote(urlsplit(folder).path) if folder.startswith("file://") else folder


def below(url: str, name: str) -> str:
    """The URL of an object below a URL, whose query stays at the end."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def split(url: str) -> tuple[str, str]:
    """The URL of the folder that holds a checkpoint, and the checkpoint's name."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    return parts._replace(path=folder).geturl(), name
