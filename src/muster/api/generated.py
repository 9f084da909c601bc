"""Writes generated files, or checks that they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(arguments: list[str], files: Callable[[], Mapping[Path, str]], how: str, source: str) -> int:
    """Write the files that differ, or with --check only name them; returns the exit status.

    Args:
        arguments: of the command line: nothing, or --check.
        files: the expected text of each file.
        how: the command that writes the files, for messages.
        source: what the files are generated from, for messages, such as "the code says".
    """
    if arguments not in ([], ["--check"]):
        print(f"usage: {how} [--check]", file=sys.stderr)
        return 2
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments and stale:
        names = ", ".join(path.name for path in stale)
        print(f"not what {source}: {names}\nrun: {how}", file=sys.stderr)
        return 1
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.name}")
    return 0
