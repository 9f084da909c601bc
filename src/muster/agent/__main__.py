"""`python -m muster.agent`."""

import sys

from muster.agent.program import main

sys.exit(main())
