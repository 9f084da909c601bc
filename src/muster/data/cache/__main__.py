"""Runs the node cache: python -m muster.data.cache."""

from __future__ import annotations

import sys

from muster.kube.garbage import loading

with loading():
    from muster.data.cache.program import main

if __name__ == "__main__":
    sys.exit(main())
