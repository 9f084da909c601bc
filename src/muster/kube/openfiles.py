"""The limit of open files. Each connection needs one."""

from __future__ import annotations

import logging
import resource
from typing import Final

_RESERVED: Final = 256
"""Files besides connections of clients: to the API server, libraries, logs."""

log = logging.getLogger(__name__)


def raise_limit(connections: int) -> int:
    """Raise the soft limit of this process to the hard one.

    Args:
        connections: wanted at once.

    Returns:
        How many connections there can be. If they are fewer than wanted, a warning says what to change.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= connections + _RESERVED:
        return connections
    possible = max(1, hard - _RESERVED)
    log.warning(
        "only %d of %d connections are possible: a process may open %d files; raise the hard limit (ulimit -Hn)",
        possible,
        connections,
        hard,
    )
    return possible
