"""Reads a file that a configuration names, without a wait and with a limit on its size."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from muster.kube.errors import ConfigError

BYTES_MAX: Final = 4 << 20


def read_regular(path: Path, field: str) -> bytes:
    """Return the content of a regular file.

    Args:
        path: of the file.
        field: of the configuration or option that names the file, for errors.

    Raises:
        ConfigError: the file cannot be read, is not a regular file, or is larger than `BYTES_MAX`.
    """
    try:
        # Opening a pipe would wait for a writer.
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{field}: {path} is not a regular file; write the text into a file")
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{field}: {path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{field}: {str(path)!r} is not possible as a path; name another file") from None
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{field}: {path} is larger than {BYTES_MAX} bytes; name another file")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
