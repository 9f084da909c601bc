"""Guards the terminal: of all escape sequences that a command prints, only colours take effect."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

from muster.api.visible import UNSAFE, UNSAFE_OR_COLOR, written


def json_escaped(document: str) -> str:
    """Escape the same characters in a JSON document, in JSON's own form. JSON encoders escape only 00 to 1F."""
    return UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", document)


class _Guard:
    """A text stream that escapes characters that could act on a terminal; colours pass."""

    def __init__(self, stream: IO[str]) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(UNSAFE_OR_COLOR.sub(lambda found: found[1] or written(found), text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard stdout and stderr while the block runs: only colours take effect on a terminal."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(Any, _Guard(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: IO[str]) -> IO[str]:
    """Return the stream below the guard, for a display that moves the cursor. Its texts must be `visible`."""
    return stream.unguarded if isinstance(stream, _Guard) else stream
