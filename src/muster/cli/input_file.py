"""Reads a file that the user names; `-` is standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.cli.errors import BadInput


def read_text(file: str) -> str:
    """Read a file, or standard input for `-`. Raises BadInput."""
    try:
        return sys.stdin.buffer.read().decode() if file == "-" else Path(file).read_bytes().decode()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not text: {error.reason} at byte {error.start}", "write YAML in UTF-8") from error
