"""Compare many random requests: `python -m tests.support.readdifferential --requests 100000`.

Starts a control plane of its own unless `--kubeconfig` names a cluster, whose objects it then changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from muster.controlplane.programs import ControlPlane
from muster.kube.connection.config import load_config
from tests.support.readdifferential.run import Size, compare


def main() -> int:
    """Run the comparison; the exit code is 1 if answers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=300, help="random changes of objects before the requests")
    parser.add_argument("--watches", type=int, default=200, help="watches on both sides while objects change")
    parser.add_argument("--churn", type=float, default=30.0, metavar="SECONDS", help="how long objects change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kubeconfig", type=Path)
    options = parser.parse_args()
    size = Size(options.changes, options.requests, options.watches, options.churn)
    with contextlib.ExitStack() as stack:
        kubeconfig = options.kubeconfig or stack.enter_context(ControlPlane()).kubeconfig
        reports = asyncio.run(compare(load_config(kubeconfig), size, options.seed))
    for what, report in zip(("quiet", "churn"), reports, strict=True):
        print(f"seed {options.seed}, {what}: {report}")
    return 1 if any(report.differences or not report.served for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
