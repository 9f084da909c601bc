"""Translates a container's mount paths to real paths on this machine.

A process container has no mount namespace. So a `mountPath` in its command, arguments, environment or working directory
is replaced by the real folder (or file) of the volume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

_BEGINS = r"(?:(?<=://)|(?<![\w./~$}-]))"  # no path character before it, except after a URL's scheme
_ENDS = r"(?![\w-]|\.\w)"


class PathTranslator:
    """Replaces mount paths by real paths once. The longest path comes first, and only whole path components match."""

    def __init__(self, mounts: Mapping[str, str]) -> None:
        """Hold `mounts`: mountPath -> real path. A mount at `/` is not replaced, because it would match every path."""
        self._mounts = {str(PurePosixPath(path)): real for path, real in mounts.items()}
        self._mounts.pop("/", None)
        paths = "|".join(map(re.escape, sorted(self._mounts, key=len, reverse=True)))
        self._pattern = re.compile(rf"{_BEGINS}(?:{paths}){_ENDS}") if paths else None

    def text(self, text: str) -> str:
        """Translate every mount path in `text`: a path, a list joined by `:`, `--option=/path`, a shell line."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._mounts[match.group(0)], text)
