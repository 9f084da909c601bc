"""Marks for tests that need not run on the real API server too, by what decides in them.

A test has one of these marks only if another test runs the same requests on both servers. With --every-server they run
on the real one as well.
"""

from __future__ import annotations

from typing import Final

import pytest

BY_KUBELET: Final = pytest.mark.any_server(
    "the kubelet and the kernel decide; pods that start, end and are deleted run on both servers"
)
BY_AGENT: Final = pytest.mark.any_server("the agent's checks decide; writing the record runs on both servers")
BY_SCALING: Final = pytest.mark.any_server(
    "scaling and the provider decide; a gang that gets its nodes runs on both servers"
)
BY_RANKS: Final = pytest.mark.any_server("ranks, supervisors and budgets decide; the server only stores the status")
BY_CONTROLLER: Final = pytest.mark.any_server(
    "clocks and restarts of the controller decide; the server only stores the status"
)
BY_SCHEDULER: Final = pytest.mark.any_server(
    "the scheduler and the budgets decide; losing one node runs on both servers"
)
BY_BINDS: Final = pytest.mark.any_server(
    "the scheduler, or a fault that the test puts in its client, decides; binds and waiting gangs run on both servers"
)
BY_QUOTA: Final = pytest.mark.any_server(
    "the controller decides; a quota that refuses pods runs on both servers (trainingjobs/test_admission.py)"
)
BY_JOINS: Final = pytest.mark.any_server("the pace decides; nodes that are held back and opened run on both servers")
BY_REMEDIATION: Final = pytest.mark.any_server("the rules of remediation decide; a whole ladder runs on both servers")
BY_PREFLIGHT: Final = pytest.mark.any_server(
    "the rules of preflight decide; a node that fails and one that passes run on both servers"
)
BY_TEAMS: Final = pytest.mark.any_server("the allocation decides; labels and taints are written on both servers")
BY_COMMAND: Final = pytest.mark.any_server("the command only reads; one that lists all nodes runs on both servers")
BY_FILES: Final = pytest.mark.any_server(
    "files and the status decide; the write that confirms a checkpoint runs on both servers (test_progress.py)"
)
BY_METRICS: Final = pytest.mark.any_server(
    "the processes decide which figures they export; .ci/nightly also runs this on a real server (--every-server)"
)
