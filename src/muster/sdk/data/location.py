"""URLs of object stores: scheme, bucket and prefix. Safe keys."""

from __future__ import annotations

import os
import urllib.parse
from typing import NamedTuple

from muster.sdk.data.errors import WrongStore

WRONG_URL = "WrongURL"
WRONG_KEY = "WrongKey"
CLOUDS = ("s3", "gs", "az")
_LONGEST_KEY_BYTES = 1024  # of S3 and Azure


class Location(NamedTuple):
    """Where a store begins.

    Attributes:
        scheme: s3, gs, az, memory or file.
        bucket: bucket or container; the name of a store in memory; "" for files.
        prefix: what precedes every key, without "/" at its ends; for files the absolute path of the folder.
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The URL without credentials, query and "/" at the end."""
        if self.scheme == "file":
            return f"file://{self.prefix}"
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def parse_location(url: str) -> Location:
    """Parse s3://BUCKET/PREFIX, gs://, az://CONTAINER/PREFIX, memory://NAME, file:///PATH or a plain path.

    Raises WrongStore if the URL has another form, or holds credentials or a query.
    """
    if "://" not in url:
        if not url:
            raise WrongStore(
                "the URL of the store is empty: set it to s3://BUCKET/PREFIX, for example", reason=WRONG_URL
            )
        return Location("file", "", os.path.abspath(url))
    parts = urllib.parse.urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}"
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise WrongStore(f"{shown}: a URL of a folder has three slashes: file:///PATH", shown, reason=WRONG_URL)
        return Location("file", "", os.path.abspath(urllib.parse.unquote(parts.path)))
    if parts.scheme not in (*CLOUDS, "memory"):
        raise WrongStore(f"{shown}: use s3://, gs://, az://, file:// or a path", shown, reason=WRONG_URL)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise WrongStore(
            f"{shown}: the URL holds a user, a query or a fragment. Put credentials into the Secret, not into the URL",
            shown,
            reason=WRONG_URL,
        )
    if not parts.netloc or ":" in parts.netloc:
        raise WrongStore(f"{shown}: after {parts.scheme}:// comes the name of the bucket", shown, reason=WRONG_URL)
    prefix = "/".join(part for part in parts.path.split("/") if part)
    if prefix:
        check_key(prefix, f"{parts.scheme}://{parts.netloc}")
    return Location(parts.scheme, parts.netloc, prefix)


def check_key(key: str, url: str) -> str:
    """Return the key. Raises WrongStore if it is empty, too long, or has empty, "." or ".." parts."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or any(ord(letter) < 32 for letter in key):
        raise WrongStore(
            f"{url}: {key!r} is not a key: use names separated by single '/', without '..'", url, key, WRONG_KEY
        )
    if len(key.encode()) > _LONGEST_KEY_BYTES:
        raise WrongStore(
            f"{url}: the key {key[:60]!r}... is longer than {_LONGEST_KEY_BYTES} bytes", url, key, WRONG_KEY
        )
    return key
