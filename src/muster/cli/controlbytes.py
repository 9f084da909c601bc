"""Keeps bytes that a program, an API object or a name carries from acting on the user's terminal.

A terminal takes commands from what it displays: titles (OSC), cursor moves, answers that are typed for the user,
text in another order (bidirectional controls). Source: CVE-2021-25743 (kubectl), Unicode TR36 and Trojan Source.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

_SGR = r"\x1b\[[0-9;:]*m"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u2028\u2029\ufeff\U000e0000-\U000e007f"
_UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]")
_COLOR = re.compile(_SGR)
_UNSAFE_OR_COLOR = re.compile(rf"({_SGR})|{_UNSAFE.pattern}")


def visible(text: str, *, colors: bool = False) -> str:
    r"""The text with every character that could act on a terminal written out, such as `\x07` or `\u202e`.

    Tabs and line ends stay. Colours (SGR sequences) are removed; with `colors` they stay, and end with the text.
    """
    if not colors:
        return _UNSAFE.sub(_written, _COLOR.sub("", text) if "\x1b" in text else text)
    shown = _UNSAFE_OR_COLOR.sub(lambda found: found[1] or _written(found), text)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


def json_escaped(document: str) -> str:
    """A JSON document in which the same characters are escaped as JSON does it; JSON itself escapes 00 to 1F only."""
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", document)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _Guard:
    """A text stream that writes out what could act on a terminal; its own colours pass."""

    def __init__(self, stream: IO[str]) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(_UNSAFE_OR_COLOR.sub(lambda found: found[1] or _written(found), text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Within the block nothing that is printed acts on a terminal but colours: the last line of defence."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(Any, _Guard(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: IO[str]) -> IO[str]:
    """The stream below the guard, for a display that moves the cursor; what it shows must be `visible`."""
    return stream.unguarded if isinstance(stream, _Guard) else stream
