"""Escapes characters that act on a terminal, so that text of programs and users can be shown safely.

A terminal obeys commands in the text that it displays: titles (OSC), cursor moves, input on behalf of the user, text in
another order (bidirectional controls). kubectl escapes only ESC. YAML refuses most of these characters. Source:
CVE-2021-25743 (kubectl), Unicode TR36 and Trojan Source.
"""

from __future__ import annotations

import re

_SGR = r"\x1b\[[0-9;:]*m"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u2028\u2029\ufeff\U000e0000-\U000e007f"
UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]")
_COLOR = re.compile(_SGR)
UNSAFE_OR_COLOR = re.compile(rf"({_SGR})|{UNSAFE.pattern}")


def visible(text: str, *, colors: bool = False) -> str:
    r"""Return the text with every character that could act on a terminal escaped, such as `\x07` or `\u202e`.

    Tabs and line ends stay. Colours (SGR sequences) are removed; with `colors` they stay, and end with the text.
    """
    if not colors:
        return UNSAFE.sub(written, _COLOR.sub("", text) if "\x1b" in text else text)
    shown = UNSAFE_OR_COLOR.sub(lambda found: found[1] or written(found), text)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


def written(found: re.Match[str]) -> str:
    r"""Returns the escape of a control character: `\x07`, `\u202e`."""
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
