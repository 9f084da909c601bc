"""`python -m muster.agent`."""

import sys

from muster.kube.garbage import loading

with loading():
    from muster.agent.program import main

sys.exit(main())
