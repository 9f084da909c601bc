"""What may be shown of a text that another program wrote: no URL, no credential, no control byte, and not too much."""

from __future__ import annotations

import re

_READ = 2000
_LONGEST = 400
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]*")
_HEADER = re.compile(r"(?i)((?:authorization|cookie)[\w-]*)[\"']?\s*[:=>].*")  # to the end: the value has many words
_NAMED = re.compile(
    r"(?i)([\w.-]*(?:key|token|secret|password|credential|signature|sign|sig)[\w.-]*)[\"']?\s*[:=>]\s*"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;&<>(){}]+)"
)
_TOKEN = re.compile(r"[\w+/=~%.-]{32,}|(?=[\w+/=~%.-]*\d)[\w+/=~%.-]{16,}")


def redacted(text: str) -> str:
    """Return the first paragraph of the text in one line, with "..." for all that may be secret.

    That is every URL, since it may be signed, and the value after a name such as `token` or `Signature`. It is also
    every run of 16 characters that looks like a key or digest. So this hides too much rather than too little.
    """
    shown = _URL.sub("URL", text.partition("\n\n")[0][:_READ])
    shown = _HEADER.sub(r"\1: ...", shown)
    shown = _NAMED.sub(r"\1: ...", shown)
    shown = _TOKEN.sub("...", shown)
    shown = " ".join("".join(each if each.isprintable() else " " for each in shown).split())
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
