"""Credentials in the folder of a mounted Secret: one file for each environment variable of the cloud's own tools."""

from __future__ import annotations

import contextlib
import os

_LARGEST_BYTES = 1 << 20
_MOST_READINGS = 5
NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_EXPIRATION",
    "AWS_SKIP_SIGNATURE",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_SKIP_SIGNATURE",
)


class Credentials:
    """The values of one reading of the folder. They appear in no text made from this object."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self._values))})"

    def get(self, name: str) -> str:
        """Return the value of a variable; "" if the folder has no such file."""
        return self._values.get(name, "")

    def same_as(self, other: Credentials) -> bool:
        """Returns whether both readings found the same values."""
        return self._values == other._values


def read_credentials(folder: str) -> Credentials:
    """Read the files that are there, again if they change at the same time. Files with other names are ignored.

    Raises OSError if the folder cannot be read.
    """
    found, before = Credentials({}), fingerprint(folder)
    for _ in range(_MOST_READINGS):
        found = _read(folder)
        after = fingerprint(folder)
        if after == before:
            break
        before = after
    return found


def _read(folder: str) -> Credentials:
    present = set(os.listdir(folder))
    values: dict[str, str] = {}
    for name in NAMES:
        if name in present:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text = file.read(_LARGEST_BYTES).strip()
            if text:
                values[name] = text
    return Credentials(values)


def fingerprint(folder: str) -> tuple[object, ...]:
    """A cheap sign of change: the kubelet swaps the link `..data`; other writers replace the files."""
    found: list[object] = []
    for name in ("..data", *NAMES):
        with contextlib.suppress(OSError):
            status = os.stat(os.path.join(folder, name))
            found.append((name, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


class Folder:
    """Credentials in the folder of a mounted Secret."""

    def __init__(self, folder: str) -> None:
        self.name = folder

    def read(self) -> Credentials:
        """Read the files. Raises OSError if the folder cannot be read."""
        return read_credentials(self.name)

    def fingerprint(self) -> tuple[object, ...]:
        """A value that differs when the files may have changed."""
        return fingerprint(self.name)


class Given(Folder):
    """Credentials that a program received, and keeps in memory only."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__("the credentials of this request")
        self._values = {name: value for name, value in values.items() if name in NAMES}

    def read(self) -> Credentials:
        """Return the values."""
        return Credentials(self._values)

    def fingerprint(self) -> tuple[object, ...]:
        """Always the same: other values need another object."""
        return ()
