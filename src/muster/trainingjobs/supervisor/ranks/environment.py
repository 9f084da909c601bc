"""Writes the environment of this node's first rank to a file, for `muster exec`."""

from __future__ import annotations

import contextlib
import os
import shlex

from ..basics import ARCHIVE
from ..state.attempt import AttemptSpec

NAME = "rank.env"


def write_rank_env(attempt: AttemptSpec) -> None:
    """Write the file as shell assignments, beside the supervisor's folder. If that is not writable, no file is written.

    Ranks are numbered node by node, as launchers do by default. Without MUSTER_ATTEMPT the SDK knows that it does not
    run in a rank: it reports nothing.
    """
    if not ARCHIVE:  # run from the source tree, without a pod
        return
    path = os.path.join(os.path.dirname(os.path.dirname(ARCHIVE)), NAME)
    numbers = {
        "RANK": attempt.node_rank * attempt.ranks_per_node,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": attempt.nodes * attempt.ranks_per_node,
        "LOCAL_WORLD_SIZE": attempt.ranks_per_node,
        "NODE_RANK": attempt.node_rank,
        "MASTER_ADDR": attempt.master_address,
        "MASTER_PORT": attempt.master_port,
    }
    lines = [f"export {name}={shlex.quote(str(value))}\n" for name, value in numbers.items()]
    with contextlib.suppress(OSError):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.writelines(lines)
        os.replace(path + ".new", path)
